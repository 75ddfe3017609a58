// Shows attention weights: each section "attention" has its data as JSON, and for each head its weights as bytes,
// deflated and in base64, which are decoded when the head is opened. The byte b stands for the weight (b / 255)².

const MAX_LINES = 1000; // more lines hide each other; the largest weights are drawn
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

/** Return the page's color of weights in the current color scheme, such as "#1f5f99". */
const weightColor = () => getComputedStyle(document.documentElement).getPropertyValue("--part-1").trim();

/** Return the pixel of each byte: the color of weights, more opaque for larger ones. */
function palette() {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(weightColor().slice(start, start + 2), 16));
  return Uint32Array.from({ length: 256 }, (_, byte) => ((byte << 24) | (blue << 16) | (green << 8) | red) >>> 0);
}

function paint(canvas, width, height, pixelAt) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  new Uint32Array(image.data.buffer).forEach((_, i, pixels) => { pixels[i] = pixelAt(i); });
  context.putImageData(image, 0, 0);
}

const formatWeight = (byte) => ((byte / 255) ** 2).toFixed(byte < 26 ? 4 : 3);
const tokenLabel = (token) => Object.assign(document.createElement("div"),
  { className: "token", textContent: token, title: token });

class AttentionView {
  constructor(section) {
    this.section = section;
    this.data = JSON.parse(this.find('script[type="application/json"]').textContent);
    this.texts = section.querySelectorAll('script[type="text/plain"]');
    this.controls = Object.fromEntries([...section.querySelectorAll("[name]")].map((e) => [e.getAttribute("name"), e]));
    this.buttons = [...section.querySelectorAll(".heads button")];
    [this.box, this.cursor, this.reading] = [".box", ".cursor", ".reading"].map((name) => this.find(name));
    this.canvases = { matrix: this.find(".cells canvas"), lines: this.find(".lines canvas") };
    this.numHeads = this.controls.head.options.length;
    this.row = this.column = null; // the selected cell; beside lines, row is the selected token on this side:
    this.side = "rows";
    this.marked = []; // the shaded tokens beside the lines
    this.listen();
    this.start().catch((error) => { this.reading.textContent = `This browser cannot show the weights: ${error}`; });
  }

  find(selector) { return this.section.querySelector(selector); }
  get form() { return this.controls.form.value; }
  get otherSide() { return this.side === "rows" ? "columns" : "rows"; }
  weightAt(row, column) { return this.weights[this.rows[row] * this.data.tokens.length + this.columns[column]]; }
  /** Return row and column of the selected token and one on the other side of the lines. */
  cellOf(other) { return this.side === "rows" ? [this.row, other] : [other, this.row]; }

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
    const redrawLines = () => { if (this.form === "lines") this.draw(); };
    addEventListener("resize", redrawLines);
    this.box.addEventListener("scroll", redrawLines);
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
      cell.textContent = this.data.measures[cell.dataset.measure][index]?.toFixed(2) ?? "–";
    }
    this.box.ariaBusy = "true";
    const weights = await decode(this.texts[index].textContent);
    if (this.index !== index) return; // another head was opened meanwhile
    this.weights = weights;
    this.draw();
    this.box.ariaBusy = "false";
    this.read();
  }

  headName() {
    const [layer, head] = [this.controls.layer, this.controls.head].map((select) => select.selectedOptions[0].text);
    return `Layer ${layer}, head ${head}`;
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
    const [sources, choice] = [this.data.sources, this.controls.tokens.value];
    const indicesOf = (side) => [...sources.keys()].filter((i) => choice === "all"
      || (choice === "words" ? sources[i] >= 0 : sources[i] === "AB".indexOf(choice[side])));
    [this.rows, this.columns] = [indicesOf(0), indicesOf(1)];
    for (const form of ["matrix", "lines"]) {
      this.find(`.${form}`).hidden = form !== this.form;
      for (const side of ["rows", "columns"]) {
        const indices = form === this.form ? this[side] : [];
        this.find(`.${form} .${side}`).replaceChildren(...indices.map((i) => tokenLabel(this.data.tokens[i])));
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
    const [width, height] = [this.columns, this.rows].map((indices) => `${cell * indices.length}px`);
    Object.assign(this.canvases.matrix.style, { width, height });
    if (this.column !== null) this.select(this.row, this.column);
  }

  draw() {
    if (!this.weights || !this.rows.length || !this.columns.length) return;
    if (this.form === "lines") return this.drawLines();
    const [colors, width] = [palette(), this.columns.length];
    const pixelAt = (i) => colors[this.weightAt(Math.floor(i / width), i % width)];
    paint(this.canvases.matrix, width, this.rows.length, pixelAt);
  }

  /** Return the smallest byte of which, with all larger ones, there are few enough lines. */
  smallestByte() {
    const counts = new Uint32Array(256);
    this.rows.forEach((_, row) => this.columns.forEach((_, column) => counts[this.weightAt(row, column)]++));
    let [byte, total] = [255, counts[255]];
    while (byte > 1 && total + counts[byte - 1] <= MAX_LINES) total += counts[--byte];
    return byte;
  }

  /** Draw lines of the visible tokens for the largest weights, or for all weights of the selected token. */
  drawLines() {
    const [canvas, top] = [this.canvases.lines, this.box.scrollTop];
    const fullHeight = LINE_HEIGHT * Math.max(this.rows.length, this.columns.length);
    const [width, height] = [canvas.clientWidth, Math.min(fullHeight, this.box.clientHeight)];
    Object.assign(canvas, { width, height }).style.height = `${height}px`;
    const middle = (position) => (position + 0.5) * LINE_HEIGHT - top;
    const isVisible = (position) => middle(position) > 0 && middle(position) < height;
    const paths = Array.from({ length: 16 }, () => new Path2D()); // by weight
    let darkest = 0; // the level of the largest weight
    const add = (row, column, smallest) => {
      const byte = this.weightAt(row, column);
      if (byte < smallest || !(isVisible(row) || isVisible(column))) return;
      darkest = Math.max(darkest, byte >> 4);
      paths[byte >> 4].moveTo(0, middle(row));
      paths[byte >> 4].lineTo(width, middle(column));
    };
    if (this.row === null) {
      const smallest = this.smallestByte();
      this.rows.forEach((_, row) => this.columns.forEach((_, column) => add(row, column, smallest)));
    } else this[this.otherSide].forEach((_, i) => add(...this.cellOf(i), 1));
    const context = canvas.getContext("2d");
    context.strokeStyle = weightColor();
    paths.forEach((path, level) => {
      context.globalAlpha = Math.min(1, (level + 0.5) / (darkest + 0.5));
      context.stroke(path);
    });
    this.markTokens(Math.floor(top / LINE_HEIGHT), Math.ceil((top + height) / LINE_HEIGHT));
  }

  /** Shade the tokens on the other side, from `first` to `last`, by their weight for the selected token. */
  markTokens(first, last) {
    this.marked.forEach((label) => label.removeAttribute("style"));
    this.find(".lines .on")?.classList.remove("on");
    if (this.row === null) return;
    this.find(`.lines .${this.side}`).children[this.row].classList.add("on");
    this.marked = [...this.find(`.lines .${this.otherSide}`).children].slice(first, last);
    this.marked.forEach((label, i) => {
      label.style.setProperty("--share", (this.weightAt(...this.cellOf(first + i)) / 255).toFixed(2));
    });
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
      this.reading.textContent = `${name("rows", this.row)} → ${name("columns", this.column)}: `
        + formatWeight(this.weightAt(this.row, this.column));
    } else {
      const weights = this[this.otherSide].map((_, i) => [this.weightAt(...this.cellOf(i)), i]);
      const largest = weights.sort((a, b) => b[0] - a[0]).slice(0, 5);
      const parts = largest.map(([byte, i]) => `${name(this.otherSide, i)} ${formatWeight(byte)}`);
      const start = `${name(this.side, this.row)} ${this.side === "rows" ? "→" : "←"}`;
      this.reading.textContent = `${start} ${parts.join(" · ")}`;
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
    const [colors, { side, measures }] = [palette(), this.data];
    const values = measures[this.controls.measure.value];
    const largest = values && Math.max(1e-9, ...values);
    this.buttons.forEach((button, index) => {
      const canvas = button.firstElementChild;
      if (values) paint(canvas, 1, 1, () => colors[Math.round(255 * Math.max(0, values[index]) / largest)]);
      else paint(canvas, side, side, (i) => colors[this.thumbnails[index * side * side + i]]);
      button.title = values ? values[index]?.toFixed(2) ?? "–" : "";
    });
  }
}

for (const section of document.querySelectorAll(".attention")) new AttentionView(section);
