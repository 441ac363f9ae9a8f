// One drawing, two pens: a canvas for the screen, and SVG for the file that is saved.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";

const known = new Map();  // asking for a style is slow, and a grid has thousands of cells

export function colour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return known.get(name);
}

export const forgetColours = () => known.clear();

export class CanvasPen {
  constructor(canvas, width, height) {
    const dense = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * dense));
    canvas.height = Math.max(1, Math.round(height * dense));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.c = canvas.getContext("2d");
    this.c.setTransform(dense, 0, 0, dense, 0, 0);
    this.c.clearRect(0, 0, width, height);
  }

  rect(x, y, w, h, {fill, stroke, width = 1, alpha = 1} = {}) {
    this.c.globalAlpha = alpha;
    if (fill) { this.c.fillStyle = fill; this.c.fillRect(x, y, w, h); }
    if (stroke) { this.c.strokeStyle = stroke; this.c.lineWidth = width; this.c.strokeRect(x, y, w, h); }
    this.c.globalAlpha = 1;
  }

  ellipse(x, y, rx, ry, {fill, stroke, width = 1, alpha = 1} = {}) {
    this.c.globalAlpha = alpha;
    this.c.beginPath();
    this.c.ellipse(x, y, Math.max(rx, 0), Math.max(ry, 0), 0, 0, 2 * Math.PI);
    if (fill) { this.c.fillStyle = fill; this.c.fill(); }
    if (stroke) { this.c.strokeStyle = stroke; this.c.lineWidth = width; this.c.stroke(); }
    this.c.globalAlpha = 1;
  }

  path(points, {fill, stroke, width = 1, alpha = 1, dash = []} = {}) {
    this.c.globalAlpha = alpha;
    this.c.beginPath();
    points.forEach(([x, y], i) => (i ? this.c.lineTo(x, y) : this.c.moveTo(x, y)));
    this.c.setLineDash(dash);
    if (fill) { this.c.closePath(); this.c.fillStyle = fill; this.c.fill(); }
    if (stroke) { this.c.strokeStyle = stroke; this.c.lineWidth = width; this.c.lineJoin = "round"; this.c.stroke(); }
    this.c.setLineDash([]);
    this.c.globalAlpha = 1;
  }

  text(words, x, y, {fill, size = 11, anchor = "start", turn = 0} = {}) {
    this.c.save();
    this.c.translate(x, y);
    this.c.rotate(turn * Math.PI / 180);
    this.c.font = `${size}px ${FONT}`;
    this.c.fillStyle = fill || colour("soft");
    this.c.textAlign = anchor === "middle" ? "center" : anchor;
    this.c.textBaseline = "middle";
    this.c.fillText(words, 0, 0);
    this.c.restore();
  }

  // Marks that overlap as one shape: draw(pen) is clipped to the box and laid on with one opacity.
  layer([x, y, w, h], alpha, draw) {
    const own = this.c, dense = own.getTransform().a, sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [own.canvas.width, own.canvas.height];
    this.c = sheet.getContext("2d");
    this.c.setTransform(own.getTransform());
    this.c.beginPath();
    this.c.rect(x, y, w, h);
    this.c.clip();
    draw(this);
    this.c = own;
    own.globalAlpha = alpha;
    own.drawImage(sheet, 0, 0, sheet.width / dense, sheet.height / dense);
    own.globalAlpha = 1;
  }

  image(canvas, x, y, w, h) {
    this.c.imageSmoothingEnabled = false;
    this.c.drawImage(canvas, x, y, w, h);
  }
}

export class SvgPen {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.parts = [];
  }

  rect(x, y, w, h, style) {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}"${look(style)}/>`);
  }

  ellipse(x, y, rx, ry, style) {
    this.parts.push(`<ellipse cx="${n(x)}" cy="${n(y)}" rx="${n(rx)}" ry="${n(ry)}"${look(style)}/>`);
  }

  path(points, style) {
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${n(x)} ${n(y)}`).join("");
    this.parts.push(`<path d="${d}${style.fill ? "Z" : ""}"${look(style)}/>`);
  }

  text(words, x, y, {fill, size = 11, anchor = "start", turn = 0} = {}) {
    this.parts.push(
      `<text transform="translate(${n(x)} ${n(y)}) rotate(${turn})" font-size="${size}" fill="${fill || colour("soft")}" ` +
      `text-anchor="${anchor}" dominant-baseline="central">${escaped(words)}</text>`);
  }

  layer([x, y, w, h], alpha, draw) {
    const name = `box${this.parts.length}`;
    this.parts.push(`<clipPath id="${name}"><rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}"/></clipPath>` +
      `<g clip-path="url(#${name})" opacity="${alpha}">`);
    draw(this);
    this.parts.push("</g>");
  }

  image(canvas, x, y, w, h) {
    this.parts.push(
      `<image x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" preserveAspectRatio="none" ` +
      `style="image-rendering:pixelated" href="${canvas.toDataURL("image/png")}"/>`);
  }

  file() {
    const size = `${Math.ceil(this.width)} ${Math.ceil(this.height)}`;
    const [w, h] = size.split(" ");
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size}" width="${w}" height="${h}" ` +
      `font-family="${escaped(FONT)}"><rect width="100%" height="100%" fill="${colour("paper")}"/>` +
      `${this.parts.join("\n")}</svg>\n`;
  }
}

const n = x => String(Math.round(x * 100) / 100);

export const escaped = words => String(words).replace(/[&<>"']/g, mark => `&#${mark.charCodeAt(0)};`)
  .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");

function look({fill, stroke, width = 1, alpha = 1, dash} = {}) {
  return ` fill="${fill || "none"}"` + (stroke ? ` stroke="${stroke}" stroke-width="${width}"` : "") +
    (alpha < 1 ? ` opacity="${alpha}"` : "") + (dash && dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "");
}

// -- numbers and axes

export function short(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

export function ticks(low, high, most = 6) {
  if (!(high > low)) return [low];
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(s => s * power).find(s => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

export function range(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  return low <= high ? [low, high] : [0, 1];
}

export function scale([low, high], [a, b]) {
  const size = high - low || 1;
  const to = value => a + (value - low) / size * (b - a);
  to.back = place => low + (place - a) / (b - a) * size;
  return to;
}

export function mapped(map, share) {
  const i = 3 * Math.max(0, Math.min(255, Math.round(255 * share)));
  return `rgb(${map[i]},${map[i + 1]},${map[i + 2]})`;
}

export function cut(words, most) {
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

export function elided(words, width, size = 11) {
  return cut(words, Math.max(2, Math.floor(width / (size * 0.56))));
}

export const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#999933"];
