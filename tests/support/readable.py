"""What a reader of a page trips over, measured in the browser: expressions that list what they find."""

# A part of a name that is longer than any column may break anywhere; punctuation and markup may as well.
UNREADABLE = r"""(async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const found = [], wide = document.documentElement.scrollWidth;
  const broken = (part, one) => found.push(`${part} breaks in ${one.outerHTML.slice(0, 80)}`);
  if (wide > innerWidth) found.push(`the page is ${wide} wide`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = texts.nextNode();) {
    const holder = node.parentElement;
    if (!holder.checkVisibility() || holder.closest("script, style, noscript, pre")) continue;
    for (const run of node.data.matchAll(/\S+/g)) {
      const parts = [...run[0].matchAll(/[^\/-]+/g)];
      if (parts.some((part) => part[0].length > 24) || !/^[\p{L}\p{N}\/.,:;'()%$#&_≈-]+$/u.test(run[0])) continue;
      for (const part of parts) {
        const range = document.createRange(), at = run.index + part.index;
        range.setStart(node, at); range.setEnd(node, at + part[0].length);
        const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
        if (new Set(boxes.map((box) => Math.round(box.top))).size > 1) broken(part[0], holder);
      }
    }
    const whole = /(?<!\S)\d[\d,.]*\s(?:h|min|s|ms)(?!\w)|(?<![\w\/-])\d{4}-\d\d-\d\d(?![\w\/-])/gu;
    for (const one of node.data.matchAll(whole)) {
      const range = document.createRange();
      range.setStart(node, one.index); range.setEnd(node, one.index + one[0].length);
      const tops = [...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top));
      if (new Set(tops).size > 1) broken(one[0], holder);
    }
    if (holder.tagName === "TIME") {
      const range = document.createRange();
      range.setStart(node, 0); range.setEnd(node, Math.max(0, node.data.lastIndexOf(" ")));
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken("a date", holder);
    }
  }
  for (const one of document.querySelectorAll("body *")) {
    if (!(one instanceof HTMLElement) || !one.checkVisibility()) continue;
    const how = getComputedStyle(one);
    const hides = how.overflowX === "hidden" && how.textOverflow !== "ellipsis";
    if (hides && one.clientWidth && one.scrollWidth > one.clientWidth + 1)
      found.push(`cut off: ${one.outerHTML.slice(0, 80)}`);
    if (one.matches("dd, .fact") && one.scrollWidth > one.clientWidth + 1)
      found.push(`leaves its box: ${one.outerHTML.slice(0, 80)}`);
    if (one.matches("button, .button") && one.offsetHeight > 40) broken(one.textContent, one);
  }
  for (const facts of document.querySelectorAll("dl.facts")) {
    const last = facts.lastElementChild.getBoundingClientRect().right, end = facts.getBoundingClientRect().right;
    if (end - last > 3) found.push(`the last row of facts has an empty place: ${facts.innerText.slice(0, 80)}`);
  }
  for (const one of document.querySelectorAll("time"))
    if (one.checkVisibility() && one.offsetHeight > 50) found.push(`a time in more than two lines: ${one.innerText}`);
  for (const frame of document.querySelectorAll(".frame"))
    if (frame.scrollWidth > frame.clientWidth + 1) found.push(`a table is cut: ${frame.innerText.slice(0, 80)}`);
  const middle = (one) => { const box = one.getBoundingClientRect(); return box.top + box.height / 2; };
  for (const button of document.querySelectorAll("td button")) {
    const row = button.closest("tr"), cell = row.cells[0], range = document.createRange();
    if (!button.checkVisibility() || getComputedStyle(row).display !== "table-row") continue;
    range.selectNodeContents(cell);
    const line = range.getClientRects()[0];
    if (Math.abs(middle(button) - line.top - line.height / 2) > 3)
      found.push(`a button beside its line: ${row.innerText.slice(0, 80)}`);
  }
  for (const one of document.querySelectorAll(".actions a, .actions button, .filter button")) {
    if (!one.checkVisibility()) continue;
    const beside = [...one.closest(".actions, .filter").querySelectorAll("a, button, input")]
      .filter((other) => other.checkVisibility() && Math.abs(middle(other) - middle(one)) < 30);
    if (beside.some((other) => Math.abs(middle(other) - middle(one)) > 2))
      found.push(`a button out of line: ${one.innerText}`);
  }
  const pen = document.createElement("canvas").getContext("2d");
  for (const cell of document.querySelectorAll(".cards td[data-name]")) {
    const label = getComputedStyle(cell, "::before"), how = getComputedStyle(cell);
    if (!cell.checkVisibility() || label.position !== "absolute" || label.display === "none") continue;
    pen.font = `${label.fontWeight} ${label.fontSize} ${label.fontFamily}`;
    if (pen.measureText(cell.dataset.name).width > parseFloat(how.paddingLeft) - 8)
      found.push(`a label runs into its value: ${cell.dataset.name}`);
  }
  for (const field of document.querySelectorAll("input[placeholder]")) {
    const how = getComputedStyle(field);
    pen.font = `${how.fontWeight} ${how.fontSize} ${how.fontFamily}`;
    const room = field.clientWidth - parseFloat(how.paddingLeft) - parseFloat(how.paddingRight);
    if (field.checkVisibility() && pen.measureText(field.placeholder).width > room)
      found.push(`an example is cut: ${field.placeholder}`);
  }
  if (innerWidth < 600)
    for (const row of document.querySelectorAll("main .frame tbody tr"))
      if (row.cells.length > 3 && getComputedStyle(row).display === "table-row")
        found.push(`a table of ${row.cells.length} columns on a phone: ${row.innerText.slice(0, 60)}`);
  return found;
})()"""
BROKEN_CODES = """[...document.querySelectorAll("code")].filter((code) => {
  const range = document.createRange();
  range.selectNodeContents(code);
  const tops = [...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top));
  return code.checkVisibility() && /^\\S{1,24}$/.test(code.textContent) && new Set(tops).size > 1;
}).map((code) => code.textContent)"""
