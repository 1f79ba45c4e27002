"""One visit of a page from the file system: at two widths and in both themes, with what the browser said."""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

from PIL import Image

WIDE, PHONE = 1400, 390
HEIGHT = 900
THEMES = ("light", "dark")
LOCAL = {"file", "data", "blob", "about"}
TIMEOUT_MS = 30_000
RING = 3
ATTEMPTS = 4
QUALITY = 85  # JPEG takes half the time of PNG, which is most of a visit's

SETTLED = """async () => {
  await document.fonts.ready;
  if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
}"""

# Two frames: what scripts do about a new width has happened, and is drawn.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

CONTENT = """() => {
  const shown = (e) => e.checkVisibility();
  const bare = document.querySelector('main').cloneNode(true);
  bare.querySelectorAll('code, pre, script, style, mjx-container').forEach((e) => e.remove());
  return {
    headings: [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(shown)
      .map((e) => [Number(e.tagName[1]), e.innerText.trim()]),
    images: [...document.images].map((e) => ({
      source: e.getAttribute('src'), alt: e.getAttribute('alt'), drawn: e.complete && e.naturalWidth > 0,
    })),
    links: [...document.querySelectorAll('a[href]')].map((e) => e.href),
    ids: [...document.querySelectorAll('[id]')].map((e) => e.id),
    formulas: document.querySelectorAll('.math').length,
    displayed: document.querySelectorAll('div.math mjx-container[display="true"]').length,
    untypeset: [...document.querySelectorAll('.math')].filter((e) => !e.querySelector('mjx-container svg'))
      .map((e) => e.textContent.trim()),
    faulty: [...document.querySelectorAll('mjx-container [data-mml-node="merror"]')].map((e) => e.textContent),
    raw: bare.textContent.match(/\\$\\$|\\\\[([]|\\\\begin\\{|\\$[^$\\n]{1,80}\\$/g) ?? [],
  };
}"""

# Text against the colour behind it, by WCAG 2: 4.5, or 3 where it is large. Gives the pairs that fall short.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const rgba = (css) => {
    if (!known.has(css)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = css;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(css, [r, g, b, a / 255]);
    }
    return known.get(css);
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => c * a + below[i] * (1 - a));
  const grounds = new Map();
  const ground = (e) => {
    if (!e) return [255, 255, 255];
    if (!grounds.has(e)) {
      const own = rgba(getComputedStyle(e).backgroundColor);
      grounds.set(e, own[3] === 1 ? own.slice(0, 3) : over(own, ground(e.parentElement)));
    }
    return grounds.get(e);
  };
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || e.closest('script, style, mjx-container, [aria-hidden="true"]')) continue;
    if (!e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const style = getComputedStyle(e);
    const behind = ground(e);
    const [a, b] = [luminance(over(rgba(style.color), behind)), luminance(behind)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const text = walker.currentNode.data.trim().slice(0, 40);
      weak.push(`${ratio.toFixed(2)} ${e.getAttribute('class') || e.tagName}: ${text}`);
    }
  }
  return [...new Set(weak)];
}"""

# What sticks out of the page's right edge without a box around it that scrolls.
SIDEWAYS = """() => {
  const edge = document.documentElement.clientWidth + 1;
  const scrolls = (e) => {
    for (let box = e.parentElement; box && box !== document.body; box = box.parentElement) {
      if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return true;
    }
    return false;
  };
  window.scrollTo(5000, 0);
  const moved = window.scrollX;
  window.scrollTo(0, 0);
  const out = [...document.querySelectorAll('.bd-header-article *, .bd-article *, .prev-next-footer *')].filter(
    (e) => e.checkVisibility() && !e.closest('mjx-assistive-mml')
      && e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > edge && !scrolls(e));
  return {
    moved, width: document.documentElement.scrollWidth,
    out: out.map((e) => `${e.tagName.toLowerCase()}.${e.getAttribute('class')}: ${e.textContent.trim().slice(0, 40)}`),
  };
}"""

BOXES = """() => {
  const boxes = (kind, selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility())
    .map((e) => {
      const r = e.getBoundingClientRect();
      return {kind, name: e.closest('[id]')?.id, x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height};
    });
  // The index's columns are tables to Sphinx. Their words are links, blue in both themes; contrast is read by itself
  const tables = '.bd-article table:not(.indextable) tbody';
  return [...boxes('figure', '.bd-article figure img'), ...boxes('table', tables)];
}"""


@dataclass(frozen=True)
class Look:
    """How bright one figure or table is, 0 to 1: its ground, and the darkest and the brightest of its pixels."""

    kind: str
    name: str
    ground: float
    darkest: float
    brightest: float


@dataclass
class Visit:
    """What the tests ask of one page."""

    name: str
    file: Path
    content: dict = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    sideways: dict = field(default_factory=dict)
    contrast: dict[str, list[str]] = field(default_factory=dict)
    looks: dict[str, list[Look]] = field(default_factory=dict)
    pictures: list[Path] = field(default_factory=list)

    @property
    def remote(self) -> list[str]:
        return [url for url in self.requests if urlparse(url).scheme not in LOCAL]


def visit(browser, html: Path, name: str, shots: Path) -> Visit:
    """Open a page by its file, look at it at both widths and in both themes, and leave four screenshots."""
    found = Visit(name, html / f"{name}.html")
    # A reader whose system is light; the page has to follow when it turns dark.
    context = browser.new_context(
        viewport={"width": WIDE, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.on("console", lambda said: _note(found, said))
    page.on("pageerror", lambda error: found.messages.append(f"error: {error}"))
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("requestfailed", lambda request: found.failed.append(request.url))
    page.goto(found.file.as_uri())
    page.evaluate(SETTLED)
    found.content = page.evaluate(CONTENT)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
        for width in (WIDE, PHONE):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            picture = shots / f"{Path(name).name}-{width}-{theme}.jpg"
            shot, boxes = photograph(page, picture)
            found.pictures.append(picture)
            if width == WIDE:
                found.looks[theme] = measure(shot, boxes)
                found.contrast[theme] = page.evaluate(CONTRAST)
            elif theme == "light":
                found.sideways = page.evaluate(SIDEWAYS)
    context.close()
    return found


def photograph(page, target: Path) -> tuple[bytes, list[dict]]:
    """The whole page as a picture and where its figures and tables are in it, once the layout has settled."""
    for _ in range(ATTEMPTS):
        page.evaluate(DRAWN)
        boxes = page.evaluate(BOXES)
        shot = page.screenshot(type="jpeg", quality=QUALITY, full_page=True, animations="disabled")
        if page.evaluate(BOXES) == boxes:
            # In one step: another process may look at the same page, and at the size of this file
            draft = target.with_suffix(f".{os.getpid()}.part")
            draft.write_bytes(shot)
            draft.replace(target)
            return shot, boxes
    raise RuntimeError(f"{target.name}: the layout did not settle in {ATTEMPTS} pictures")


def _note(found: Visit, said) -> None:
    if said.type in ("error", "warning"):
        found.messages.append(f"{said.type}: {said.text}")


def measure(shot: bytes, boxes: list[dict]) -> list[Look]:
    """The brightness of each box of a full page's picture."""
    whole = Image.open(io.BytesIO(shot))
    looks = []
    for box in boxes:
        left, top = round(box["x"]) + 1, round(box["y"]) + 1
        right, bottom = round(box["x"] + box["width"]) - 1, round(box["y"] + box["height"]) - 1
        grey = whole.crop((left, top, min(right, whole.width), min(bottom, whole.height))).convert("L")
        width, height = grey.size
        ring = [grey.crop((0, 0, width, RING)), grey.crop((0, height - RING, width, height))]
        edge = sorted(value for strip in ring for value in strip.tobytes())
        darkest, brightest = grey.getextrema()
        looks.append(
            Look(box["kind"], box["name"], edge[len(edge) // 2] / 255, darkest / 255, brightest / 255)
        )
    return looks
