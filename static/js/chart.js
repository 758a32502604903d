// Samples of a host over time. The data stands in a JSON script element; colours come from the style sheet.
let plots = [];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function plotOptions(data, width) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const strokes = ["--ours", "--foreign", "--good", "--bad", "--kv", "--overhead", "--attention", "--neutral"];
  return {
    width,
    height: 200,
    tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { y: { range: [0, data.max ?? null] } },
    axes: [{ ...axis, values: (_, times) => times.map((time) => new Date(time * 1000).toISOString().slice(11, 16)) }, { ...axis, size: 60, label: data.unit, labelSize: 16, font: "12px system-ui" }],
    series: [{ label: "UTC", value: (_, time) => (time === null ? "–" : new Date(time * 1000).toISOString().slice(11, 19)) }, ...data.series.map((line, index) => ({
      label: line.label,
      stroke: colour(strokes[index % strokes.length]),
      width: 1.5,
      spanGaps: false,
      value: (_, value) => (value === null || value === undefined ? "–" : `${value} ${data.unit}`),
    }))],
  };
}

function draw() {
  for (const plot of plots) plot.destroy();
  plots = [];
  for (const place of document.querySelectorAll("[data-chart]")) {
    const data = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    place.replaceChildren();
    if (data.times.length > 1) {
      plots.push(new window.uPlot(plotOptions(data, place.clientWidth), [data.times, ...data.series.map((line) => line.values)], place));
    }
  }
}

draw();
document.addEventListener("theme-changed", draw);
document.addEventListener("part-refreshed", draw);
let timer = null;
addEventListener("resize", () => {
  clearTimeout(timer);
  timer = setTimeout(draw, 150);
});
