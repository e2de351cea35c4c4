// Makes the timelines beside this script live. What it draws from is each picture's <metadata>: see svg.py, _data().
(() => {
  const box = document.currentScript.parentNode, DIGITS = "0123456789abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVWXYZwxyz-_";
  const plain = (words) => words.replace(/[&<]/g, (letter) => `&#${letter.charCodeAt()};`);
  box.querySelectorAll("img.stepbudget-live").forEach((image) => {
    const text = decodeURIComponent(image.src.slice(image.src.indexOf(",") + 1));
    const svg = document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
    const plot = svg.querySelector(".plot"), data = JSON.parse(svg.querySelector("metadata").textContent);
    const { rows, looks, span, unit, left } = data, wide = data.plot, high = svg.viewBox.baseVal.height;
    const hint = document.createElement("div"), mark = document.createElementNS(svg.namespaceURI, "rect");
    let from = 0, to = span, held = null;

    const numbers = (packed = "") => {
      const found = [];
      let so = 0;
      for (const digit of packed) {
        const value = DIGITS.indexOf(digit);
        so = 32 * so + (value % 32);
        if (value >= 32) so = (found.push(so), 0);
      }
      return found;
    };
    for (const row of rows) {
      const all = numbers(row.bars), shares = numbers(row.curve), each = data.end / shares.length;
      row.all = shares.map((share, i) => ({ from: i * each, to: (i + 1) * each, count: 1, busy: (share / 1000) * each,
        look: row.look, label: "", name: `${row.name}: ${+((share / 1000) * row.top).toPrecision(3)}${row.unit}` }));
      for (let i = 0, at = 0; i < all.length; i += 3) {
        const length = all[i + 1], several = all[i + 2] % 2, [look, room, ...texts] = data.said[all[i + 2] >> 1];
        const [label, name, detail] = texts.map((text) => data.texts[text]);
        const [count, busy] = several ? all.slice(i + 3, i + 5) : [1, length];
        at += all[i];
        row.all.push({ from: at, to: at + length, count, busy, look, label, room, name, detail });
        i += 2 * several;
      }
    }

    const x = (at) => ((at - from) * wide) / (to - from);
    const time = (event) => {
      const edge = svg.getBoundingClientRect();
      return from + ((((event.clientX - edge.left) * (wide + data.beside)) / edge.width - left) * (to - from)) / wide;
    };
    const lasts = (length, digits = 3) => {
      const ns = length * unit, power = Math.min(3, Math.floor(Math.log10(ns || 1) / 3));
      return `${+(ns / 1000 ** power).toPrecision(digits)} ${["ns", "µs", "ms", "s"][power]}`;
    };

    function drawn(row) {
      const paths = {}, columns = {}, free = new Float32Array(wide).fill(1), below = new Float32Array(wide);
      let labels = "", layers = "";
      for (const one of row.all) {
        const start = Math.max(0, x(one.from)), end = Math.min(wide, x(one.to)), width = end - start;
        if (end < 0 || start >= wide) continue;
        if (width < 1) {
          const own = (columns[one.look] ??= new Float32Array(wide)), first = start | 0;
          const busy = Math.min(width, (one.busy * wide) / (to - from)), part = Math.min(1, (first + 1 - start) / (width || 1));
          own[first] += part * busy;
          own[first + 1] += (1 - part) * busy;
          continue;
        }
        for (let i = start | 0; i < end; i++) free[i] -= Math.min(end, i + 1) - Math.max(start, i);
        const tall = (row.h * one.busy) / (one.to - one.from), gap = row.curve ? 0 : 0.4;
        paths[one.look] ??= "";
        paths[one.look] += `M${start.toFixed(1)} ${row.h}v-${tall}h${Math.max(1, width - gap).toFixed(1)}v${tall}z`;
        if (one.label && row.h >= 16 && one.room + 8 < width)
          labels += `<text x="${start + 4}" y="${row.h / 2 + 4}" ${looks[one.look][1]}>${plain(one.label)}</text>`;
      }
      for (const look in columns) {
        let path = "";
        columns[look].forEach((busy, i) => {
          if (!busy) return;
          const share = Math.min(1, (below[i] += busy) / Math.max(free[i], 0.01));
          path += `M${i} ${row.h}v-${row.h * (row.curve ? share : Math.max(0.08, share))}h1V${row.h}z`;
        });
        layers = `<path ${looks[look][0]} d="${path}"/>${layers}`;
      }
      for (const look in paths) layers += `<path ${looks[look][0]} d="${paths[look]}"/>`;
      return `<g transform="translate(0 ${row.y})">${layers}${labels}</g>`;
    }

    function axis() {
      const last = rows[rows.length - 1], bottom = last.y + last.h, least = ((to - from) * unit) / 8;
      const power = 10 ** Math.floor(Math.log10(least));
      const step = [1, 2, 5, 10].find((digit) => digit * power >= least) * power;
      let shapes = "";
      for (let i = Math.ceil((from * unit) / step); i * step <= to * unit; i++) {
        const at = x((i * step) / unit), words = ((i * step) / 1e6).toLocaleString("en", { maximumFractionDigits: 6 });
        shapes += `<path d="M${at} ${rows[0].y}V${bottom}" stroke="currentColor" opacity=".25"/>`;
        if (at < wide - 40)
          shapes += `<text x="${at}" y="${bottom + 15}" text-anchor="${at < 15 ? "start" : "middle"}">${words}</text>`;
      }
      return `${shapes}<text x="${wide}" y="${bottom + 15}" text-anchor="end">ms</text>`;
    }

    function show(start, end) {
      const width = Math.min(span, Math.max(end - start, 50));
      from = Math.max(0, Math.min(start, span - width));
      to = from + width;
      plot.innerHTML = rows.map(drawn).join("") + axis();
      for (const ground of svg.querySelectorAll(".ground"))
        ground.setAttribute("width", Math.max(0, Math.min(wide, x(data.end))));
    }
    const zoom = (share, at = (from + to) / 2) => show(at - (at - from) * share, at + (to - at) * share);
    const move = (share) => show(from + share * (to - from), to + share * (to - from));

    function told(row, at) {
      const pixel = (to - from) / wide, near = row.all.filter((one) => one.from <= at + pixel && one.to >= at - pixel);
      const under = near.filter((one) => one.to - one.from >= pixel && one.from <= at && one.to >= at);
      const here = under.length ? [under.sort((a, b) => a.to - a.from - b.to + b.from)[0]] : near, [one] = here;
      if (!one) return "";
      if (here.length === 1 && one.count === 1)
        return [one.name, one.detail, `at ${lasts(one.from, 7)}, for ${lasts(one.to - one.from)}`].filter(Boolean).join("\n");
      const kinds = {}, length = under.length ? one.to - one.from : 2 * pixel;
      let count = 0, busy = 0;
      for (const own of here) {
        const what = (own.count > 1 && looks[own.look][2]) || own.label || own.name;
        kinds[what] = (kinds[what] || 0) + own.count;
        count += own.count;
        busy += own.busy;
      }
      const most = Object.entries(kinds).sort((a, b) => b[1] - a[1]).slice(0, 4);
      const share = Math.min(100, (100 * busy) / length).toFixed(0);
      return [`${count} ${row.what} in ${lasts(length)}, busy ${share} %`, ...most.map(([what, n]) => `${n} × ${what}`)].join("\n");
    }

    const act = {
      pointerdown(event) {
        if (event.button === 0) held = time(event);
        svg.setPointerCapture(event.pointerId);
      },
      pointermove(event) {
        const at = time(event), edge = svg.getBoundingClientRect();
        const y = ((event.clientY - edge.top) * high) / edge.height;
        const row = rows.find((one) => y >= one.y && y <= one.y + one.h);
        hint.textContent = row && held === null && at >= from && at <= to && told(row, at) || "";
        hint.style.cssText = "position:fixed;z-index:9999;max-width:440px;padding:6px 9px;border-radius:4px;" +
          "background:#22262B;color:#F4F2EC;font:12px/1.4 system-ui,sans-serif;white-space:pre-line;overflow-wrap:" +
          `anywhere;pointer-events:none;left:${Math.min(event.clientX + 14, innerWidth - 460)}px;` +
          `top:${event.clientY + (event.clientY > innerHeight - 160 ? -120 : 16)}px`;
        hint.hidden = !hint.textContent;
        if (held === null) return;
        if (event.shiftKey) return show(from + held - at, to + held - at);
        const [start, end] = [held, at].sort((a, b) => a - b).map((one) => Math.max(0, Math.min(wide, x(one))));
        mark.setAttribute("x", left + start);
        mark.setAttribute("width", end - start);
        svg.append(mark);
      },
      pointerup(event) {
        const [start, end] = [held, time(event)].sort((a, b) => a - b);
        if (mark.parentNode && x(end) - x(start) > 4) show(Math.max(from, start), Math.min(to, end));
        held = null;
        mark.remove();
      },
      pointerleave: () => (hint.hidden = true),
      dblclick: () => show(0, span),
      wheel(event) {
        if (!event.ctrlKey) return;
        event.preventDefault();
        zoom(event.deltaY < 0 ? 0.8 : 1.25, time(event));
      },
      keydown(event) {
        const done = { "+": () => zoom(0.7), "-": () => zoom(1.4), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
          0: act.dblclick, Escape: act.dblclick }[event.key];
        if (!done || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        event.stopPropagation();
        done();
      },
    };
    for (const what in act) svg.addEventListener(what, act[what], { passive: false });
    hint.hidden = true;
    mark.setAttribute("height", high);
    mark.setAttribute("opacity", 0.2);
    svg.removeAttribute("color");
    svg.setAttribute("tabindex", 0);
    svg.setAttribute("style", `${image.getAttribute("style")};touch-action:pan-y;user-select:none;cursor:crosshair`);
    svg.insertAdjacentHTML("beforeend", `<text x="${left}" y="${high - 4}" font-size="10.5" opacity=".75">` +
      "drag: zoom · Shift and drag: move · Ctrl and wheel, + and −: zoom · double click: all</text>");
    image.replaceWith(svg);
    box.append(hint);
    show(0, span);
  });
})();
