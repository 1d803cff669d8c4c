// Position encodings.

function positionSection() {
  const body = section("positions", "Positional encodings", "What is added to a token's embedding to say where it stands.");
  const { table, dots, largest = 1 } = data.positions;
  if (table?.shape?.[0]) body.append(...positionPicture(table, largest));
  const said = data.positions.kind === "learned" ? "Dot product of position 0 with the others" : "Dot product of two positions by their distance";
  if (dots?.length > 1) body.append(make("h3", {}, said), fittedPlot(dots));
}

function positionPicture({ shape: [positions, width], bytes }, largest) {
  const values = Float32Array.from(bytesOf({ bytes }), (level) => (level / 127.5 - 1) * largest);
  const canvas = picture(values, width, positions, largest, -largest);
  canvas.id = "position-map";
  const said = readout("position-readout");
  said.textContent = `${positions} positions (down) by ${width} dimensions (across)`;
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect();
    const place = (offset, size, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / size) * count)));
    const row = place(event.clientY - frame.top, frame.height, positions);
    const column = place(event.clientX - frame.left, frame.width, width);
    said.textContent = `position ${row}, dimension ${column}: ${minus(values[row * width + column].toFixed(2))}`;
    showTip(event, said.textContent);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return [box("controls", said, legend(`−${largest}`, `+${largest}`)), canvas];
}

// Redrawn for each width, so that its letters keep their size
function fittedPlot(values) {
  const frame = box("plot-frame");
  new ResizeObserver(() => frame.replaceChildren(linePlot(values, Math.min(frame.clientWidth, 760)))).observe(frame);
  return frame;
}

function linePlot(values, width) {
  const [height, left, bottom] = [260, 52, 40];
  const [low, high] = [Math.min(0, ...values), Math.max(...values)];
  const x = (index) => left + (index / (values.length - 1)) * (width - left - 12);
  const y = (value) => 10 + ((high - value) / (high - low || 1)) * (height - bottom - 10);
  const ticks = (from, to) => {
    const step = 10 ** Math.floor(Math.log10((to - from) / 2 || 1));
    const wide = [1, 2, 5, 10].map((times) => times * step).find((size) => (to - from) / size <= 6);
    const first = Math.ceil(from / wide);
    return Array.from({ length: Math.floor(to / wide) - first + 1 }, (_, place) => (first + place) * wide);
  };
  const label = (value) => minus(String(Number(value.toPrecision(6))));
  const plot = svg("svg", { id: "dots", class: "plot", width, height, role: "img", "aria-label": "Dot product by distance" });
  const write = (x, y, anchor, words) => plot.append(svg("text", { x, y, "text-anchor": anchor }, words));
  const draw = (kind, d) => plot.append(svg("path", { class: kind, d }));
  for (const value of ticks(low, high)) {
    draw("grid", `M${left} ${y(value)}H${width - 12}`);
    write(left - 8, y(value) + 4, "end", label(value));
  }
  for (const index of ticks(0, values.length - 1).filter(Number.isInteger)) {
    draw("grid", `M${x(index)} ${height - bottom}v5`);
    write(x(index), height - bottom + 18, "middle", String(index));
  }
  draw("curve", `M${values.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`);
  write((left + width) / 2, height - 4, "middle", "distance in positions");
  plot.addEventListener("pointermove", (event) => {
    const share = (event.clientX - plot.getBoundingClientRect().left - left) / (width - left - 12);
    const index = Math.max(0, Math.min(values.length - 1, Math.round(share * (values.length - 1))));
    showTip(event, `distance ${index}: ${label(values[index])}`);
  });
  plot.addEventListener("pointerleave", hideTip);
  return plot;
}
