"use strict";
// Shows attention weights: each section "attention" has its data as JSON, and for each head its weights as bytes,
// deflated and in base64, which are decoded when the head is opened. The byte b stands for the weight (b / 255)².

const MAX_LINES = 2000; // more lines hide each other; the largest weights are drawn
const LINE_HEIGHT = 18; // pixels of a token beside the lines
const MIN_LABELED_CELL = 10; // pixels, below which a matrix has no tokens at its sides
const MAX_LABELED = 64; // tokens, up to which cells are that large at first

/** Return the bytes that were deflated and written in base64. */
async function decode(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return the page's color of weights in the current color scheme: red, green, blue. */
function weightColor() {
  const color = getComputedStyle(document.documentElement).getPropertyValue("--part-1").trim();
  return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
}

/** Return the pixel of each byte: the color of weights, more opaque for larger ones. */
function palette() {
  const [red, green, blue] = weightColor();
  return Uint32Array.from({ length: 256 }, (_, byte) => ((byte << 24) | (blue << 16) | (green << 8) | red) >>> 0);
}

function paint(canvas, width, height, pixelAt) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = pixelAt(i);
  context.putImageData(image, 0, 0);
}

function formatWeight(byte) {
  const weight = (byte / 255) ** 2;
  return weight.toFixed(weight < 0.01 ? 4 : 3);
}

function tokenLabels(parent, tokens, indices) {
  parent.replaceChildren(...indices.map((index) => {
    const label = document.createElement("div");
    return Object.assign(label, { className: "token", textContent: tokens[index], title: tokens[index] });
  }));
}

class AttentionView {
  constructor(section) {
    this.section = section;
    this.data = JSON.parse(this.find('script[type="application/json"]').textContent);
    this.texts = section.querySelectorAll('script[type="text/plain"]');
    this.controls = Object.fromEntries([...section.querySelectorAll("[name]")].map((e) => [e.getAttribute("name"), e]));
    this.buttons = [...section.querySelectorAll(".heads button")];
    this.box = this.find(".box");
    this.cells = this.find(".cells");
    this.cursor = this.find(".cursor");
    this.reading = this.find(".reading");
    this.canvases = { matrix: this.find(".cells canvas"), lines: this.find(".lines canvas") };
    this.numHeads = this.controls.head.options.length;
    this.row = this.column = null; // the selected positions in this.rows and this.columns
    this.side = "rows"; // of the selected token beside the lines
    this.listen();
    this.start().catch((error) => { this.reading.textContent = `This browser cannot show the weights: ${error}`; });
  }

  find(selector) { return this.section.querySelector(selector); }
  get form() { return this.controls.form.value; }

  async start() {
    this.thumbnails = await decode(this.data.thumbnails);
    this.drawOverview();
    this.chooseTokens();
    await this.open(0);
  }

  listen() {
    const { layer, head, form, tokens, size, measure } = this.controls;
    const openChosen = () => this.open(Number(layer.value) * this.numHeads + Number(head.value));
    for (const control of [layer, head]) control.addEventListener("change", openChosen);
    for (const control of [form, tokens]) control.addEventListener("change", () => this.chooseTokens());
    size.addEventListener("input", () => this.resize());
    measure.addEventListener("change", () => this.drawOverview());
    this.buttons.forEach((button, index) => {
      button.addEventListener("click", () => this.open(index));
      button.addEventListener("keydown", (event) => this.moveHead(event, index));
    });
    this.canvases.matrix.addEventListener("pointermove", (event) => {
      const box = this.canvases.matrix.getBoundingClientRect();
      const position = (offset, length, count) => Math.max(0, Math.min(count - 1, Math.floor(offset / length * count)));
      this.select(position(event.clientY - box.top, box.height, this.rows.length),
        position(event.clientX - box.left, box.width, this.columns.length));
    });
    for (const side of ["rows", "columns"]) {
      this.find(`.lines .${side}`).addEventListener("pointerover", (event) => {
        const index = [...event.currentTarget.children].indexOf(event.target);
        if (index >= 0) this.selectBeside(side, index);
      });
    }
    this.find(".lines").addEventListener("pointerleave", () => this.clear());
    this.box.addEventListener("keydown", (event) => this.moveCell(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.drawOverview(); this.draw(); });
    addEventListener("resize", () => { if (this.form === "lines") this.draw(); });
  }

  /** Open the head at this index over all layers. */
  async open(index) {
    this.index = index;
    const { layer, head } = this.controls;
    [layer.value, head.value] = [Math.floor(index / this.numHeads), index % this.numHeads];
    this.buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", i === index);
      button.tabIndex = i === index ? 0 : -1;
    });
    this.find(".name").textContent = this.headName();
    for (const cell of this.section.querySelectorAll("[data-measure]")) {
      const value = this.data.measures[cell.dataset.measure][index];
      cell.textContent = value === null ? "–" : value.toFixed(2);
    }
    const weights = await decode(this.texts[index].textContent);
    if (this.index !== index) return; // another head was opened meanwhile
    this.weights = weights;
    this.draw();
    this.read();
  }

  headName() {
    const name = (select) => select.options[select.selectedIndex].text;
    return `Layer ${name(this.controls.layer)}, head ${name(this.controls.head)}`;
  }

  /** Open the neighbor of a head in the direction of an arrow key. */
  moveHead(event, index) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.numHeads, ArrowDown: this.numHeads };
    const next = index + (steps[event.key] ?? NaN);
    if (!(next >= 0 && next < this.buttons.length)) return;
    event.preventDefault();
    this.open(next);
    this.buttons[next].focus();
  }

  /** Choose the tokens that attend (rows) and those attended to (columns), and show them. */
  chooseTokens() {
    const { sources } = this.data;
    const choice = this.controls.tokens.value;
    const indices = (side) => [...sources.keys()].filter((i) => choice === "all"
      || (choice === "words" ? sources[i] >= 0 : sources[i] === "AB".indexOf(choice[side])));
    this.rows = indices(0);
    this.columns = indices(1);
    for (const form of ["matrix", "lines"]) {
      this.find(`.${form}`).hidden = form !== this.form;
      for (const side of ["rows", "columns"]) {
        tokenLabels(this.find(`.${form} .${side}`), this.data.tokens, form === this.form ? this[side] : []);
      }
    }
    this.controls.size.closest("label").hidden = this.form === "lines";
    const count = Math.max(this.rows.length, this.columns.length);
    const fitting = Math.floor((this.box.parentElement.clientWidth - 100) / Math.max(1, count));
    this.controls.size.value = Math.max(count > MAX_LABELED ? 2 : 12, Math.min(20, fitting));
    this.clear();
    this.resize();
    if (this.weights) this.draw();
  }

  resize() {
    const cell = this.form === "lines" ? LINE_HEIGHT : Number(this.controls.size.value);
    this.box.style.setProperty("--cell", `${cell}px`);
    for (const side of ["rows", "columns", "corner"]) this.find(`.matrix .${side}`).hidden = cell < MIN_LABELED_CELL;
    this.canvases.matrix.style.width = `${cell * this.columns.length}px`;
    this.canvases.matrix.style.height = `${cell * this.rows.length}px`;
    if (this.row !== null && this.form === "matrix") this.select(this.row, this.column);
  }

  weightAt(row, column) {
    return this.weights[this.rows[row] * this.data.tokens.length + this.columns[column]];
  }

  draw() {
    if (!this.weights) return;
    if (this.form === "lines") return this.drawLines();
    const colors = palette();
    const width = this.columns.length;
    paint(this.canvases.matrix, width, this.rows.length,
      (i) => colors[this.weightAt(Math.floor(i / width), i % width)]);
  }

  /** Draw lines for the largest weights, or for all weights of the selected token. */
  drawLines() {
    const canvas = this.canvases.lines;
    const width = canvas.clientWidth;
    Object.assign(canvas, { width, height: LINE_HEIGHT * Math.max(this.rows.length, this.columns.length) });
    const isSelected = (row, column) => this.row === null || (this.side === "rows" ? row : column) === this.row;
    const byByte = Array.from({ length: 256 }, () => []); // the lines of each byte: row, column, …
    this.rows.forEach((_, row) => this.columns.forEach((_, column) => {
      if (isSelected(row, column)) byByte[this.weightAt(row, column)].push(row, column);
    }));
    const context = canvas.getContext("2d");
    Object.assign(context, { strokeStyle: `rgb(${weightColor().join(" ")})`, lineWidth: 1.5 });
    const middle = (position) => (position + 0.5) * LINE_HEIGHT;
    let count = 0;
    for (let byte = 255; byte > 0 && count < MAX_LINES; byte--) {
      context.globalAlpha = byte / 255;
      context.beginPath();
      for (let i = 0; i < byByte[byte].length && count < MAX_LINES; i += 2, count++) {
        context.moveTo(0, middle(byByte[byte][i]));
        context.lineTo(width, middle(byByte[byte][i + 1]));
      }
      context.stroke();
    }
    this.markTokens();
  }

  /** Shade the tokens on the other side by their weight for the selected token. */
  markTokens() {
    for (const side of ["rows", "columns"]) {
      [...this.find(`.lines .${side}`).children].forEach((label, i) => {
        const isOther = this.row !== null && side !== this.side;
        const weight = isOther ? this.weightAt(...(this.side === "rows" ? [this.row, i] : [i, this.row])) / 255 : 0;
        label.style.setProperty("--share", weight.toFixed(2));
        label.classList.toggle("on", side === this.side && i === this.row);
      });
    }
  }

  selectBeside(side, index) {
    [this.side, this.row] = [side, index];
    this.draw();
    this.read();
  }

  select(row, column) {
    [this.row, this.column] = [row, column];
    const cell = Number(this.controls.size.value);
    this.cursor.hidden = false;
    this.cursor.style.transform = `translate(${column * cell}px, ${row * cell}px)`;
    for (const label of this.find(".matrix").querySelectorAll(".on")) label.classList.remove("on");
    this.find(".matrix .rows").children[row]?.classList.add("on");
    this.find(".matrix .columns").children[column]?.classList.add("on");
    this.read();
  }

  clear() {
    this.row = this.column = null;
    this.cursor.hidden = true;
    if (this.form === "lines" && this.weights) this.draw();
    this.read();
  }

  /** Write the weight of the selected cell, or the largest weights of the selected token. */
  read() {
    const name = (side, position) => this.data.tokens[this[side][position]];
    if (this.row === null || !this.weights) {
      this.reading.textContent = `${this.headName()}. Point at the weights, or move with the arrow keys.`;
    } else if (this.form === "matrix") {
      const weight = formatWeight(this.weightAt(this.row, this.column));
      this.reading.textContent = `${name("rows", this.row)} → ${name("columns", this.column)}: ${weight}`;
    } else {
      const isFrom = this.side === "rows";
      const other = isFrom ? "columns" : "rows";
      const weights = this[other].map((_, i) => [isFrom ? this.weightAt(this.row, i) : this.weightAt(i, this.row), i]);
      const largest = weights.sort((a, b) => b[0] - a[0]).slice(0, 5)
        .map(([byte, i]) => `${name(other, i)} ${formatWeight(byte)}`);
      this.reading.textContent = `${name(this.side, this.row)} ${isFrom ? "→" : "←"} ${largest.join(", ")}`;
    }
  }

  /** Move to the next cell, or beside lines to the next token, with the arrow keys; Escape ends the selection. */
  moveCell(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Escape") return this.clear();
    if (!(event.key in steps) || !this.rows.length || !this.columns.length) return;
    event.preventDefault();
    const [down, right] = this.row === null ? [0, 0] : steps[event.key];
    const move = (position, step, count) => Math.max(0, Math.min(count - 1, (position ?? 0) + step));
    if (this.form === "lines") {
      const side = right ? (right > 0 ? "columns" : "rows") : this.side;
      this.selectBeside(side, move(this.row, down, this[side].length));
      this.find(`.lines .${side}`).children[this.row].scrollIntoView({ block: "nearest" });
    } else {
      this.select(move(this.row, down, this.rows.length), move(this.column, right, this.columns.length));
      this.cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  /** Draw all heads: the largest weights of blocks of tokens, or a number of each head as a shade. */
  drawOverview() {
    const colors = palette();
    const { side, measures } = this.data;
    const values = measures[this.controls.measure.value];
    const largest = values && Math.max(1e-9, ...values);
    this.buttons.forEach((button, index) => {
      const canvas = button.firstElementChild;
      if (values) paint(canvas, 1, 1, () => colors[Math.round(255 * Math.max(0, values[index]) / largest)]);
      else paint(canvas, side, side, (i) => colors[this.thumbnails[index * side * side + i]]);
      button.title = values ? (values[index] === null ? "–" : values[index].toFixed(2)) : "";
    });
  }
}

for (const section of document.querySelectorAll(".attention")) new AttentionView(section);
