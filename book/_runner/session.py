"""One call of the runner: which chapters are stale, their execution, the site, the closing table."""

import datetime
import os
import subprocess
import sys
from dataclasses import dataclass

from . import device, hooks, kernelspec, keys, manifest, site
from .book import Book, BookError, Chapter, select, title
from .execute import Pool
from .progress import Progress, describe, link, table


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    device: str = "auto"
    profile: str = "quick"
    only: tuple[str, ...] = ()
    force: bool = False
    site: bool = True
    timeout: float = 600.0
    jobs: int | None = None


class Session:
    """Runs a book once and keeps its manifest."""

    def __init__(self, book: Book, options: Options):
        self.book = book
        self.options = options
        self.progress = Progress()
        self.started = datetime.datetime.now(datetime.UTC)
        # A run that was begun elsewhere (python -m kernels.lab measure) is gone on with
        self.run_id = os.environ.get("BOOK_RUN_ID") or self.started.strftime("%Y%m%dT%H%M%SZ")
        self.chapters = select(book.chapters, list(options.only))
        self.device = device.resolve(options.device)
        self.versions = device.versions()
        if "papermill" not in self.versions:
            raise BookError(
                f"papermill is not importable in {sys.executable}: run `make book`, or install it"
            )
        measured = (book.build / "runs" / self.run_id / "run.json").is_file()
        self.jobs = _jobs(options.jobs, self.device["kind"], measured)
        self.parameters = {"device": self.device["kind"], "profile": options.profile}
        self.inputs = keys.shared_inputs(book.root)
        self.sources = {chapter.name: keys.sha256_file(chapter.source) for chapter in self.chapters}
        self.commit = _commit(book.root)
        self.manifest = manifest.load(book.manifest)
        # A chapter that the table of contents has dropped must not stay on the status page.
        kept = {chapter.name for chapter in book.chapters}
        self.entries = {name: entry for name, entry in self.manifest["chapters"].items() if name in kept}
        self.manifest["chapters"] = self.entries

    def run(self) -> int:
        """Execute what is stale, render the site; 0, or 1 when a chapter or the site failed."""
        stale = [chapter for chapter in self.chapters if self.options.force or not self._is_fresh(chapter)]
        cached = {chapter.name for chapter in self.chapters} - {chapter.name for chapter in stale}
        for name in cached:
            self.entries[name]["cached"] = True
        self._announce(stale, cached)
        kernels_base = kernelspec.install(self.book.build)
        pool = Pool(
            self.book,
            self.progress,
            timeout=self.options.timeout,
            jobs=self.jobs,
            run_id=self.run_id,
            kernels_base=kernels_base,
            # Side by side, timings would disturb each other
            measures=self.device["kind"] != "cuda" or self.jobs == 1,
        )
        pool.run(stale, self.parameters, self._finished)
        problem, site_line = None, ""
        try:
            if stale:
                hooks.finish_run(self.book, self.book.build / "runs" / self.run_id, self.manifest)
            site_line = self._site()
        except BookError as error:
            problem, site_line = str(error), self._kept()
        failures = {
            chapter.name: self.entries[chapter.name]["error"]
            for chapter in self.chapters
            if self.entries[chapter.name]["status"] == "failed"
        }
        self.manifest["last_run"] = {
            "run_id": self.run_id,
            "seconds": round(self.progress.elapsed(), 2),
            "device": self.device,
            "profile": self.options.profile,
            "executed": [chapter.name for chapter in stale],
            "cached": sorted(cached),
            "failed": sorted(failures),
        }
        manifest.save(self.book.manifest, self.manifest)
        self._report(cached, failures, problem, site_line)
        return 1 if failures or problem else 0

    def _key(self, chapter: Chapter) -> str:
        return keys.chapter_key(
            self.sources[chapter.name], self.inputs, self.parameters, self.device, self.versions
        )

    def _executed(self, chapter: Chapter):
        return self.book.executed / f"{chapter.name}.ipynb"

    def _is_fresh(self, chapter: Chapter) -> bool:
        entry = self.entries.get(chapter.name)
        return manifest.is_fresh(entry, self._key(chapter), self._executed(chapter), keys.sha256_file)

    def _announce(self, stale: list[Chapter], cached: set[str]) -> None:
        self.progress.say(
            f"{len(self.chapters)} chapters on {self.device['name']} ({self.device['kind']}), "
            f"profile {self.options.profile}: {len(stale)} to execute, {len(cached)} unchanged"
        )
        if self.book.missing:
            waiting = ", ".join(self.book.missing)
            self.progress.say(f"without a source, so a page writer has to deliver them: {waiting}")

    def _finished(self, chapter: Chapter, result: dict) -> None:
        """Enter one chapter's result into the manifest, at once: a later crash must not lose it."""
        good = result["status"] == "ok"
        self.entries[chapter.name] = {
            "name": chapter.name,
            "source": chapter.source.relative_to(self.book.root).as_posix(),
            "title": title(chapter.source),
            "source_sha256": self.sources[chapter.name],
            "executed_sha256": keys.sha256_file(self._executed(chapter)) if good else None,
            "key": self._key(chapter),
            "status": result["status"],
            "cells": result["cells"],
            "executed_cells": result["executed_cells"],
            "seconds": result["seconds"],
            "device": self.device,
            "profile": self.options.profile,
            "versions": self.versions,
            "run_id": self.run_id,
            "started": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "git_commit": self.commit,
            "cached": False,
            "error": result["error"],
        }
        if good:
            text = f"done, {result['cells']} cells in {result['seconds']:.1f} s"
        else:
            text = f"FAILED, {describe(result['error'])}"
        self.progress.chapter(chapter.name, text)
        manifest.save(self.book.manifest, self.manifest)

    def _site(self) -> str:
        """Render the site if it can and has to be; returns the line that says what became of it."""
        if not self.options.site:
            return "site not asked for (--no-site)"
        if skip := site.reason_to_skip():
            return f"site skipped: {skip}"
        lacking = [chapter.name for chapter in self.book.chapters if not self._is_good(chapter)]
        if lacking:
            return f"{self._kept()}\nchapters without a good execution: {', '.join(lacking)}"
        index = self.book.html / "index.html"
        key = site.inputs_key(self.book, self.manifest, self.inputs)
        if not self.options.force and self.manifest["site"].get("key") == key and index.is_file():
            return f"site unchanged: {link(index)}"
        self.progress.say(f"[{self.progress.elapsed():6.1f} s] renders the site")
        staged = site.stage(self.book, self.manifest)
        site.swap(site.build(self.book, staged, fresh=self.options.force), self.book.html)
        built = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.manifest["site"] = {"key": key, "built": built}
        return f"site: {link(index)}"

    def _is_good(self, chapter: Chapter) -> bool:
        entry = self.entries.get(chapter.name)
        return bool(entry) and entry["status"] == "ok" and self._executed(chapter).is_file()

    def _kept(self) -> str:
        index = self.book.html / "index.html"
        return f"site kept as it was: {link(index)}" if index.is_file() else "no site was rendered"

    def _report(self, cached: set[str], failures: dict, problem: str | None, site_line: str) -> None:
        say = self.progress.say
        names = [chapter.name for chapter in self.chapters]
        say()
        say(table(names, self.entries, cached, self.progress.elapsed()))
        for name, error in failures.items():
            say(f"\nFAILED {name}: {describe(error)}")
            if error["detail"]:
                say(error["detail"])
            reached = self.book.build / "failed" / f"{name}.ipynb"
            if reached.is_file():
                say(f"as far as it came: {reached}")
        if problem:
            say(f"\nFAILED site: {problem}")
        say(f"\n{site_line}")


def _jobs(asked: int | None, kind: str, measured: bool) -> int:
    """Chapters at a time. On a GPU several only read what `python -m kernels.lab measure` has left in the run."""
    if kind == "cuda":
        if asked not in (None, 1) and not measured:
            raise BookError(
                f"--jobs {asked}: chapters that measure a GPU run one at a time; accepted is 1, or more with the "
                "BOOK_RUN_ID of a run that `python -m kernels.lab measure` has filled"
            )
        return asked or 1
    return asked or min(2, os.cpu_count() or 1)


def _commit(root) -> str:
    """The commit of the sources, marked when the tree differs from it; empty where there is no git."""
    try:
        head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
        state = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True
        )
    except OSError:
        return ""
    if head.returncode != 0:
        return ""
    return head.stdout.strip() + ("-dirty" if state.stdout.strip() else "")
