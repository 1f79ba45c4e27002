/* What scrolls sideways can be reached and scrolled by keyboard, and says what it is. The theme does so for code. */
document.addEventListener("DOMContentLoaded", () => {
  const boxes = document.querySelectorAll(".bd-article figure, .bd-article .pst-scrollable-table-container");
  const update = () => {
    for (const box of boxes) {
      if (box.scrollWidth > box.clientWidth + 1) {
        const number = box.querySelector(".caption-number")?.textContent.trim();
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", `${number || "table"}, scrolls sideways`);
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  };
  update();
  window.addEventListener("load", update);
  window.addEventListener("resize", update);
});
