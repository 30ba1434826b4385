// Inputs as pictures: 8 bits a number, drawn on a canvas; numbers around 0 in two colours.
const about = data.picture;
const COOL = [33, 102, 172], WARM = [191, 87, 0];

// A colour between what is neutral in this theme and a pole, for −1 … 1.
function diverging(share) {
  const neutral = isDark() ? [30, 36, 44] : [247, 246, 242];
  const pole = share < 0 ? COOL : WARM, bright = isDark() ? 1.25 : 1;
  const t = Math.min(1, Math.abs(share));
  return neutral.map((c, k) => Math.min(255, Math.round(c + (Math.min(255, bright * pole[k]) - c) * t)));
}

function paint(canvas, colour) {
  const { height, width } = about;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    const [r, g, b] = colour(i);
    image.data.set([r, g, b, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

// kind: "input", "adversarial" or "change"; attack: which attack's example, in data.attacks
function paintInput(canvas, i, kind, attack) {
  const pixels = bytes(data.inputs.pixels[i]), rgb = about.kind === "rgb";
  const change = kind === "input" ? null : data.attacks.change[attack];
  const levels = change && signedBytes(change.levels);
  const step = change ? (255 * change.most) / (about.high - about.low) / 127 : 0;
  const level = (k) => Math.max(0, Math.min(255, Math.round(pixels[k] + (levels ? step * levels[k] : 0))));
  if (kind === "change") {
    paint(canvas, rgb ? (k) => [0, 1, 2].map((c) => 128 + levels[3 * k + c]) : (k) => diverging(levels[k] / 127));
  } else if (rgb) paint(canvas, (k) => [0, 1, 2].map((c) => level(3 * k + c)));
  else if (about.kind === "heat") paint(canvas, (k) => diverging((level(k) - 127.5) / 127.5));
  else paint(canvas, (k) => [level(k), level(k), level(k)]);
}

// Canvases are painted when they come near the window, and again when the theme changes.
const jobs = new WeakMap();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      jobs.get(entry.target)?.();
      entry.target.dataset.painted = "";
    }
  }
}, { rootMargin: "300px" });
on("theme", () => { for (const canvas of document.querySelectorAll("canvas[data-painted]")) jobs.get(canvas)?.(); });
addEventListener("beforeprint", () => { for (const canvas of document.querySelectorAll(".cards canvas")) jobs.get(canvas)?.(); });

function picture(i, kind, attack, caption, label) {
  const canvas = el("canvas", { role: "img", "aria-label": label, width: 1, height: 1 });
  canvas.style.aspectRatio = `${about.width} / ${about.height}`;
  jobs.set(canvas, () => paintInput(canvas, i, kind, attack));
  watcher.observe(canvas);
  return el("figure", { class: "thumb" }, canvas, el("figcaption", { text: caption }));
}
