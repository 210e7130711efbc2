"use strict";
// Same formulas as paraaegis.planning.cost; a test compares the two.
function elected(setting, number) {
  return Math.round(setting.ratio * setting.decay ** (number - 1) * setting.length);
}
function ballot(k, length) {
  if (k === 0) return 0;
  const bits = 31 - Math.clz32(Math.max(1, Math.floor((length - k) / k)));
  return k * (bits + 1 / (1 - (1 - k / length) ** 2 ** bits)) / 8;
}
function estimate(data, setting) {
  const { machine, constants } = data;
  const cost = machine.methods[data.methods[setting.method]];
  const total = { seconds: 0, bytes_up: 0, bytes_down: 0, phases: {}, memory_client: 0, memory_server: 0 };
  for (let number = 1; number <= setting.rounds; number++) {
    const k = elected(setting, number);
    const values = { none: 0, elected: k, rest: setting.length - k, all: setting.length };
    const encrypted = values[cost.encrypted], inClear = values[cost.in_clear];
    const votes = cost.votes ? ballot(Math.min(k, setting.length - k), setting.length) : 0;
    const ciphertexts = encrypted ? Math.ceil(encrypted / cost.per_ciphertext) : 0;
    const common = machine.header + votes + 4 * inClear;
    const up = common + cost.cipher_up * ciphertexts + cost.share_up * setting.clients;
    const down = common + cost.cipher_down * ciphertexts + cost.share_down * setting.clients;
    total.bytes_up += up;
    total.bytes_down += down;
    const dot = (line) => line[0] + line[1] * setting.length + line[2] * ciphertexts;
    const phases = {};
    if (setting.bandwidth === null) {
      phases.train = setting.clients * setting.train / Math.min(machine.cores, setting.clients);
      phases.protect = setting.clients * dot(cost.crowd);
    } else {
      phases.train = setting.train;
      for (const phase of ["vote", "protect", "reveal"]) phases[phase] = dot(cost.phases[phase]);
      phases.combine = setting.clients * dot(cost.phases.combine);
      phases.transfer = 8 * (up + down) / (1e6 * setting.bandwidth);
      phases.Flower = constants.flowerExchange * cost.exchanges + constants.flowerByte * (up + down);
    }
    for (const [phase, seconds] of Object.entries(phases)) total.phases[phase] = (total.phases[phase] || 0) + seconds;
    const vectors = cost.encrypted === "elected" && cost.in_clear === "none" ? 8 : 6;
    const [held, kept] = setting.bandwidth === null ? [1, 1] : [2, 3];
    const own = (4 * vectors + 8 * (cost.votes ? 4 : 0)) * setting.length;
    total.memory_client = Math.max(total.memory_client, constants.base + own + held * (up + down));
    total.memory_server = Math.max(total.memory_server, constants.base + 16 * encrypted + 8 * inClear + kept * (up + down));
  }
  total.seconds = Object.values(total.phases).reduce((sum, seconds) => sum + seconds, 0);
  return total;
}
function figure(value, unit) {
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${unit}`;
}
function bytes(value) {
  const [factor, unit] = value < 1e6 ? [1e3, "kB"] : value < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return figure(value / factor, unit);
}
function duration(seconds) {
  if (seconds < 1) return figure(1000 * seconds, "ms");
  return seconds < 120 ? figure(seconds, "s") : seconds < 7200 ? figure(seconds / 60, "min") : figure(seconds / 3600, "h");
}
const WEIGHTS = { method: 3, lever: 1, clients: 1, length: 1 };
function distance(run, setting) {
  const apart = (a, b) => (a > 0 && b > 0 ? Math.abs(Math.log(a / b)) : 0);
  const lever = run.elects && setting.elects ? apart(run.ratio, setting.ratio) + 20 * Math.abs(run.decay - setting.decay) : 0;
  return WEIGHTS.method * (run.method !== setting.method) + WEIGHTS.lever * lever + WEIGHTS.clients * apart(run.clients, setting.clients)
    + WEIGHTS.length * apart(run.length, setting.length);
}
// Sliders that span orders of magnitude are logarithmic.
const SLIDERS = {
  ratio: { min: Math.log10(0.001), max: 0, step: 0.01, read: (x) => 10 ** x, write: Math.log10, show: (x) => `${(100 * x).toPrecision(2)} %` },
  decay: { min: 0.8, max: 1, step: 0.005, read: (x) => x, write: (x) => x, show: (x) => x.toFixed(3) },
  clients: { min: 2, max: 200, step: 1, read: (x) => x, write: (x) => x, show: (x) => String(x) },
  rounds: { min: 1, max: 300, step: 1, read: (x) => x, write: (x) => x, show: (x) => String(x) },
  length: { min: 3, max: 9, step: 0.01, read: (x) => Math.round(10 ** x), write: Math.log10, show: (x) => `${Number(x.toPrecision(3)).toLocaleString("en")} values` },
  train: { min: -3, max: 4, step: 0.01, read: (x) => 10 ** x, write: (x) => Math.log10(Math.max(x, 1e-3)), show: duration },
  bandwidth: { min: 0, max: 4, step: 0.01, read: (x) => 10 ** x, write: Math.log10, show: (x) => figure(x, "Mbit/s") },
  budget: { min: 0, max: 60, step: 1, read: (x) => x, write: (x) => x, show: (x, data) => `ε = ${data.budgets[x].epsilon}, δ = ${data.delta.toExponential()}` },
};
function explore(data) {
  const place = document.getElementById("explorer");
  const field = (name) => place.querySelector(`[name="${name}"]`);
  const here = field("here");
  const start = Object.assign({ bandwidth: 100 }, data.start);
  here.checked = start.here;
  field("method").value = start.method;
  for (const [name, slider] of Object.entries(SLIDERS)) {
    const input = field(name);
    Object.assign(input, { min: slider.min, max: slider.max, step: slider.step });
    input.value = Math.min(slider.max, Math.max(slider.min, slider.write(start[name])));
  }
  const read = () => {
    const setting = { method: field("method").value };
    for (const [name, slider] of Object.entries(SLIDERS)) setting[name] = slider.read(Number(field(name).value));
    if (here.checked) setting.bandwidth = null;
    if (!data.decaying.includes(setting.method)) setting.decay = 1;
    return setting;
  };
  const put = (name, text) => { place.querySelector(`[data-out="${name}"]`).textContent = text; };
  const update = () => {
    const setting = read();
    const cost = data.machine.methods[data.methods[setting.method]];
    setting.elects = cost.encrypted === "elected";
    for (const [name, slider] of Object.entries(SLIDERS)) {
      put(`of-${name}`, slider.show(slider.read(Number(field(name).value)), data));
    }
    field("ratio").disabled = cost.encrypted !== "elected";
    field("decay").disabled = !data.decaying.includes(setting.method);
    field("bandwidth").disabled = here.checked;
    const total = estimate(data, setting);
    const noised = data.noised.includes(setting.method);
    const sigma = data.start.clip * Math.sqrt(setting.rounds) / data.budgets[setting.budget].mu;
    field("budget").disabled = !noised;
    put("up", bytes(total.bytes_up / setting.rounds));
    put("down", bytes(total.bytes_down / setting.rounds));
    put("total", bytes(total.bytes_up + total.bytes_down));
    put("round", duration(total.seconds / setting.rounds));
    put("run", duration(total.seconds));
    put("phases", Object.entries(total.phases).filter(([, seconds]) => seconds > 0)
      .map(([phase, seconds]) => `${phase} ${duration(seconds / setting.rounds)}`).join(", "));
    put("sigma", noised ? `σ = ${sigma.toPrecision(3)} per coordinate at clip ${data.start.clip}, by exact client-level accounting` : "none");
    put("memory", `${bytes(total.memory_client)} client, ${bytes(total.memory_server)} server`);
    place.dataset.seconds = total.seconds;
    place.dataset.up = total.bytes_up;
    place.dataset.down = total.bytes_down;
    const near = data.measured.map((run) => [distance(run, setting), run]).sort((a, b) => a[0] - b[0]).slice(0, 3);
    place.querySelector("tbody.measured").replaceChildren(...near.map(([, run]) => {
      const row = document.createElement("tr");
      for (const text of [run.label, run.value, duration(run.seconds) + (run.shared ? " †" : ""), bytes(run.up), bytes(run.down)]) {
        row.appendChild(document.createElement("td")).textContent = text;
      }
      return row;
    }));
  };
  place.addEventListener("input", update);
  update();
}
if (typeof EXPLORER !== "undefined" && EXPLORER) explore(EXPLORER);
