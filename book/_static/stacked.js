/* Tables of class "stacked" become cards on a phone: each cell learns its column's name, and as boxes that are no
   table to the browser any more they say their roles. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.stacked")) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    table.setAttribute("role", "table");
    for (const group of [table.tHead, ...table.tBodies]) group.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, column) => {
        cell.setAttribute("role", cell.tagName === "TH" ? "columnheader" : "cell");
        cell.dataset.column = names[column] ?? "";
        cell.toggleAttribute("data-empty", !cell.textContent.trim());
      });
    }
  }
});
