// A run's live picture: frames come over a websocket only while the tab and the window are visible, each is answered
// when it is drawn, so that the newest one always comes next and nothing queues up.
window.mosaicLive = (() => {
  let current = null;

  function start(options) {
    stop();
    const part = (name) => document.getElementById(options[name]);
    const view = { options, socket: null, closed: false, timers: [], times: [], drawnAt: 0, seen: false };
    current = view;

    const say = (state, words) => {
      const status = part("status");
      if (!status) return;
      status.textContent = "Fast lane: " + words;
      status.dataset.lane = state;
      const panel = part("panel");
      if (panel) panel.dataset.lane = state;
    };

    const heard = (message) => {
      const reason = message.reason || "";
      const words = {
        waiting: view.seen ? null : "waiting for the first frame",
        reconnecting: "reconnecting" + (reason ? ": " + reason : ""),
        unavailable: "unavailable" + (reason ? ": " + reason : ""),
        ended: "ended with the run",
        gone: "unavailable: " + reason,
      }[message.state];
      if (words) say(message.state, words);
      if (message.state !== "waiting") view.live = false;
      const empty = part("empty");
      const over = "The run has ended; nothing is drawn any more. Films that it made are under Files.";
      if (empty && !view.seen) empty.textContent = message.state === "ended" ? over : words || "";
    };

    const number = (value, digits) =>
      value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });

    const show = async (data) => {
      const length = new DataView(data).getUint32(0);
      const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
      const bitmap = await createImageBitmap(new Blob([new Uint8Array(data, 4 + length)], { type: "image/jpeg" }));
      const canvas = part("canvas");
      if (!canvas || view.closed) return;
      if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
        canvas.width = bitmap.width;
        canvas.height = bitmap.height;
      }
      canvas.getContext("2d").drawImage(bitmap, 0, 0);
      bitmap.close();
      canvas.dataset.frames = Number(canvas.dataset.frames || 0) + 1;
      view.drawnAt = performance.now();
      view.times.push(view.drawnAt);
      while (view.times[0] < view.drawnAt - 2000) view.times.shift();
      if (!view.live) say("connected", "connected");
      view.live = view.seen = true;
      canvas.parentElement.dataset.seen = "yes";
      part("reward").textContent = number(head.reward, 2);
      part("return").textContent = number(head.return, 1);
      part("rate").textContent = number(head.rate, 0);
      part("step").textContent = number(head.step, 0);
      part("fps").textContent = number(view.times.length / 2, 0);
      if (head.label) part("label").textContent = head.label;
      if (head.note && options.notes) part("note").textContent = head.note;
    };

    const open = () => {
      if (view.closed || view.socket || document.hidden) return;
      const scheme = location.protocol === "https:" ? "wss://" : "ws://";
      const socket = new WebSocket(scheme + location.host + "/frames/" + options.run);
      socket.binaryType = "arraybuffer";
      view.socket = socket;
      socket.onmessage = async (event) => {
        if (typeof event.data === "string") return heard(JSON.parse(event.data));
        try {
          await show(event.data);
        } finally {
          // with the screen's own pace, and not at all while nothing is painted
          requestAnimationFrame(() => socket.readyState === WebSocket.OPEN && socket.send("drawn"));
        }
      };
      socket.onclose = () => {
        if (view.socket !== socket) return;
        view.socket = null;
        view.live = false;
        if (view.closed || document.hidden) return;
        say("reconnecting", "reconnecting");
        view.timers.push(setTimeout(open, 1000));
      };
    };

    const close = () => {
      const socket = view.socket;
      view.socket = null;
      view.live = false;
      if (socket) socket.close();
    };

    view.onVisibility = () => {
      if (!document.hidden) return open();
      close();
      say("hidden", "resting while this window is hidden");
    };
    document.addEventListener("visibilitychange", view.onVisibility);
    view.close = close;

    view.timers.push(
      setInterval(() => {
        if (!part("canvas")) return stop(view); // the tab was left
        if (view.socket && view.socket.readyState === WebSocket.OPEN) view.socket.send(".");
        const quiet = (performance.now() - view.drawnAt) / 1000;
        if (view.live && quiet > 10) {
          view.live = false;
          say("quiet", "connected, no new picture: the run is busy or paused");
        }
      }, 5000)
    );
    say("connecting", "connecting");
    open();
  }

  function stop(view = current) {
    if (!view) return;
    view.closed = true;
    view.close();
    view.timers.forEach((timer) => (clearTimeout(timer), clearInterval(timer)));
    document.removeEventListener("visibilitychange", view.onVisibility);
    if (view === current) current = null;
  }

  function fullScreen(id) {
    const panel = document.getElementById(id);
    if (document.fullscreenElement) document.exitFullscreen();
    else if (panel && panel.requestFullscreen) panel.requestFullscreen();
  }

  return { start, stop, fullScreen };
})();

// Charts in the browser: points are added to what is drawn, pictures are saved, windows moved together.
window.mosaicCharts = {
  of: (id) => {
    const element = getElement(id);
    return element && element.chart;
  },
  // [[id, first, [points of each line]], …]: everything from point `first` on is replaced
  grow(changes) {
    for (const [id, first, lines] of changes) {
      const chart = this.of(id);
      if (!chart) continue;
      const drawn = chart.getOption().series;
      const series = lines.map((line, i) => {
        const data = ((drawn[i] && drawn[i].data) || []).slice(0, first).concat(line);
        return { data, showSymbol: data.length < 2 };
      });
      chart.setOption({ series }, { lazyUpdate: true });
    }
  },
  window(ids, start, end) {
    for (const id of ids) {
      const chart = this.of(id);
      if (chart) chart.dispatchAction({ type: "dataZoom", start, end });
    }
  },
  save(id, title) {
    const chart = this.of(id);
    if (!chart) return;
    const dark = document.body.classList.contains("body--dark");
    chart.setOption({ title: { text: title, left: "center", textStyle: { fontSize: 13, color: dark ? "#eee" : "#222" } }, grid: { top: 34 } });
    const link = document.createElement("a");
    link.href = chart.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: dark ? "#1d1d1d" : "#ffffff" });
    link.download = title.replace(/[^A-Za-z0-9_-]+/g, "_") + ".png";
    link.click();
    chart.setOption({ title: { text: "" }, grid: { top: 12 } });
  },
};

// A log: texts are added as they come, the view stays at the end while it is followed.
window.mosaicLog = {
  add(id, text, follow) {
    const box = document.getElementById(id);
    if (!box) return;
    box.append(text);
    while (box.childNodes.length > 1 && box.textContent.length > 2000000) box.firstChild.remove();
    if (follow) box.scrollTop = box.scrollHeight;
  },
  clear(id) {
    const box = document.getElementById(id);
    if (box) box.textContent = "";
  },
  end(id) {
    const box = document.getElementById(id);
    if (box) box.scrollTop = box.scrollHeight;
  },
};
