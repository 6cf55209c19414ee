"use strict";
// The annotation page. Text from the study is only ever set as text, never as markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const base = location.pathname;
  let study = null;
  let index = 0;
  let zoom = 1; // 1 = fit
  let shownAt = null; // start of the running stretch of looking, or null while hidden
  let looked = 0; // seconds of the finished stretches
  let saving = false;
  let conflict = null;
  const ZOOMS = [1, 1.5, 2, 3, 4, 6];

  const say = (text) => { $("live").textContent = ""; setTimeout(() => { $("live").textContent = text; }, 30); };
  const item = () => study.items[index];
  const judged = () => study.items.filter((entry) => entry.grade !== null).length;
  const gradeOf = (value) => study.scale.grades.find((grade) => grade.value === value);
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // --- the server -----------------------------------------------------------------------------------------------
  const offline = (text) => { $("connection").textContent = text; $("connection").hidden = !text; };
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  // Keep asking until the server answers: a judgement must not be lost because the server is away for a while.
  async function persist(path, body) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        const answer = await fetch(base + path, body === undefined ? { cache: "no-store" } : {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
        });
        if (answer.status < 500) { offline(""); return answer; }
        offline("Not saved: the disk is full or cannot be written. Trying again; please keep this window open.");
      } catch (error) {
        offline("No connection. Your answer is kept here and sent as soon as the connection is back; please keep this window open.");
      }
      await wait(Math.min(500 * 2 ** attempt, 5000));
    }
  }

  // --- time per judgement: only while the page is visible -----------------------------------------------------------
  const startClock = () => { looked = 0; shownAt = document.hidden ? null : performance.now(); };
  const seconds = () => looked + (shownAt === null ? 0 : (performance.now() - shownAt) / 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { looked = seconds(); shownAt = null; } else if (shownAt === null) { shownAt = performance.now(); }
  });

  // --- views ----------------------------------------------------------------------------------------------------------
  function show(name) {
    for (const view of ["start", "work", "done"]) $(view).hidden = view !== name;
    $("top").hidden = name === "start";
  }

  function progress() {
    $("count").textContent = judged();
    $("total").textContent = study.items.length;
    $("bar").max = study.items.length;
    $("bar").value = judged();
    $("open-next").disabled = judged() === study.items.length;
  }

  function rubric(list) {
    list.replaceChildren();
    for (const grade of study.scale.grades) {
      const key = element("dt");
      key.append(element("kbd", "", grade.key));
      const text = element("dd");
      text.append(element("strong", "", grade.name), document.createTextNode(grade.meaning));
      list.append(key, text);
    }
  }

  function buildGrades() {
    for (const grade of study.scale.grades) {
      const button = element("button", "grade");
      button.type = "button";
      button.dataset.value = grade.value;
      button.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-keyshortcuts", grade.key);
      const words = element("span");
      words.append(element("span", "name", grade.name), element("span", "meaning", grade.meaning));
      button.append(element("kbd", "", grade.key), words);
      button.addEventListener("click", () => judge(grade.value));
      $("grades").append(button);
    }
  }

  function pressed() {
    for (const button of $("grades").querySelectorAll(".grade")) {
      button.setAttribute("aria-pressed", String(button.dataset.value === item().grade));
    }
  }

  function fit() {
    const viewer = $("viewer");
    const style = getComputedStyle(viewer);
    const width = viewer.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const height = viewer.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    // On a narrow screen a whole page would be too small to read: there, fit means its width.
    const whole = matchMedia("(max-width: 52rem)").matches ? Infinity : Math.max(height, 200) / item().height;
    const scale = Math.max(0.05, Math.min(width / item().width, whole));
    $("page").style.width = `${Math.round(item().width * scale * zoom)}px`;
    $("page").style.height = `${Math.round(item().height * scale * zoom)}px`;
    $("zoom-value").textContent = `${Math.round(zoom * 100)} %`;
    $("zoom-out").disabled = zoom === ZOOMS[0];
    $("zoom-in").disabled = zoom === ZOOMS[ZOOMS.length - 1];
  }

  function zoomBy(step) {
    const place = ZOOMS.indexOf(zoom) + step;
    zoom = step === 0 ? 1 : ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, place))];
    fit();
  }

  async function transcript() {
    const entry = item();
    $("find").value = "";
    $("found").textContent = "";
    if (!entry.transcript) { $("transcript").textContent = "There is no transcript of this page."; return; }
    $("transcript").textContent = "…";
    const answer = await persist(`transcript/${entry.page}.txt`);
    const text = answer.ok ? await answer.text() : "The transcript could not be read.";
    if (item() === entry) { entry.text = text; search(); }
  }

  function search() {
    const text = item().text || "";
    const wanted = $("find").value.trim().toLowerCase();
    const box = $("transcript");
    box.replaceChildren();
    if (!text) return;
    if (!wanted) { box.textContent = text; $("found").textContent = ""; return; }
    const low = text.toLowerCase();
    let from = 0, hits = 0;
    for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
      box.append(document.createTextNode(text.slice(from, at)), element("mark", "", text.slice(at, at + wanted.length)));
      from = at + wanted.length;
      hits += 1;
    }
    box.append(document.createTextNode(text.slice(from)));
    $("found").textContent = hits === 1 ? "1 place" : `${hits} places`;
    const first = box.querySelector("mark");
    if (first) box.scrollTop = first.offsetTop - box.offsetTop - 30;
  }

  function open(place) {
    index = place;
    conflict = null;
    $("conflict").hidden = true;
    show("work");
    progress();
    zoom = 1;
    $("position").textContent = `Judgement ${index + 1} of ${study.items.length}`;
    $("query").textContent = item().query;
    const image = $("page");
    image.alt = `The page to judge, number ${index + 1} of ${study.items.length}`;
    image.onload = startClock;
    image.onerror = () => { startClock(); offline("The page image could not be loaded. Reload this window."); };
    startClock();
    image.src = `${base}page/${item().page}.png`;
    $("back").disabled = index === 0;
    $("next").disabled = index === study.items.length - 1 && judged() < study.items.length;
    pressed();
    fit();
    $("viewer").scrollTo(0, 0);
    window.scrollTo(0, 0);
    if ($("transcript-box").open) transcript(); else $("transcript").textContent = "";
    $("query").focus({ preventScroll: true });
  }

  function finished() {
    show("done");
    progress();
    const list = $("review");
    list.replaceChildren();
    study.items.forEach((entry, place) => {
      const row = element("li");
      const button = element("button");
      button.type = "button";
      button.append(element("kbd", "", gradeOf(entry.grade).key), element("span", "", `${place + 1}. ${entry.query}`));
      button.setAttribute("aria-label", `Judgement ${place + 1}: ${gradeOf(entry.grade).name}. ${entry.query}`);
      button.addEventListener("click", () => open(place));
      row.append(button);
      list.append(row);
    });
    $("done-title").focus();
    say("All pages judged. Thank you!");
  }

  const firstOpen = () => study.items.findIndex((entry) => entry.grade === null);

  function forward(from) {
    const later = study.items.findIndex((entry, place) => place > from && entry.grade === null);
    const next = later >= 0 ? later : firstOpen();
    if (next >= 0) open(next); else finished();
  }

  function move(step) {
    if (saving || $("work").hidden) return;
    const next = index + step;
    if (next >= 0 && next < study.items.length) open(next);
    else if (next >= study.items.length && firstOpen() < 0) finished();
  }

  // --- judging --------------------------------------------------------------------------------------------------------
  async function judge(value) {
    if (saving || conflict || $("work").hidden) return;
    saving = true;
    const entry = item();
    const before = { grade: entry.grade, revision: entry.revision };
    const fresh = entry.grade === null;
    entry.grade = value;
    pressed();
    const answer = await persist("judge", { item: entry.item, grade: value, seconds: seconds(), revision: before.revision });
    saving = false;
    if (answer.status === 409) {
      const other = await answer.json();
      Object.assign(entry, other);
      pressed();
      progress();
      askConflict(entry, value);
      return;
    }
    if (!answer.ok) {
      Object.assign(entry, before);
      pressed();
      offline("This answer was refused and is not saved. Reload this window.");
      return;
    }
    Object.assign(entry, await answer.json());
    progress();
    say(`Saved: ${gradeOf(value).name}. ${judged()} of ${study.items.length} judged.`);
    if (fresh) forward(index); else { pressed(); $("next").disabled = index === study.items.length - 1 && firstOpen() >= 0; }
  }

  function askConflict(entry, wanted) {
    conflict = { entry, wanted };
    $("conflict-text").textContent = `In another window you answered “${gradeOf(entry.grade).name}” for this page.`;
    $("conflict-keep").textContent = `Keep “${gradeOf(entry.grade).name}”`;
    $("conflict-change").textContent = `Change to “${gradeOf(wanted).name}”`;
    $("conflict").hidden = false;
    $("conflict-keep").focus();
  }

  $("conflict-keep").addEventListener("click", () => { conflict = null; $("conflict").hidden = true; forward(index); });
  $("conflict-change").addEventListener("click", async () => {
    const { wanted } = conflict;
    conflict = null;
    $("conflict").hidden = true;
    await judge(wanted);
    if (!conflict) forward(index);
  });

  // --- controls -------------------------------------------------------------------------------------------------------
  $("agree").addEventListener("click", async () => {
    $("agree").disabled = true;
    const answer = await persist("consent", {});
    $("agree").disabled = false;
    if (answer.ok) { study.consented = true; forward(-1); }
  });
  $("back").addEventListener("click", () => move(-1));
  $("next").addEventListener("click", () => move(1));
  $("open-next").addEventListener("click", () => { if (!saving && firstOpen() >= 0) open(firstOpen()); });
  $("zoom-in").addEventListener("click", () => zoomBy(1));
  $("zoom-out").addEventListener("click", () => zoomBy(-1));
  $("zoom-fit").addEventListener("click", () => zoomBy(0));
  $("transcript-box").addEventListener("toggle", () => { if ($("transcript-box").open) transcript(); });
  $("find").addEventListener("input", search);
  $("help-open").addEventListener("click", () => $("help").showModal());
  $("help-close").addEventListener("click", () => $("help").close());
  window.addEventListener("resize", () => { if (study && !$("work").hidden) fit(); });
  window.addEventListener("beforeunload", (event) => { if (saving) event.preventDefault(); });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || $("help").open || !study) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") { $("query").focus(); event.preventDefault(); }
      return;
    }
    if (!$("shortcuts").checked || $("work").hidden) {
      if (event.key === "?" && $("shortcuts").checked && $("start").hidden) { $("help").showModal(); event.preventDefault(); }
      return;
    }
    const grade = study.scale.grades.find((entry) => entry.key === event.key.toLowerCase());
    const inViewer = $("viewer").contains(event.target) && zoom > 1;
    const actions = {
      "+": () => zoomBy(1), "=": () => zoomBy(1), "-": () => zoomBy(-1), w: () => zoomBy(0),
      "?": () => $("help").showModal(),
      t: () => { $("transcript-box").open = !$("transcript-box").open; },
      "/": () => { $("transcript-box").open = true; $("find").focus(); },
    };
    if (!inViewer) { actions.ArrowLeft = () => move(-1); actions.ArrowRight = () => move(1); }
    if (grade && !event.repeat) { event.preventDefault(); judge(grade.value); return; }
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });

  // --- start ----------------------------------------------------------------------------------------------------------
  (async () => {
    const answer = await persist("state.json");
    if (!answer.ok) { offline("This link is not valid any more."); return; }
    study = await answer.json();
    document.title = study.title;
    $("title").textContent = study.title;
    $("simulated").hidden = !study.simulated;
    $("start-title").textContent = study.title;
    $("start-items").textContent = study.items.length;
    $("start-minutes").textContent = study.minutes;
    $("start-annotator").textContent = study.annotator;
    for (const id of ["start-question", "help-question", "question"]) $(id).textContent = study.scale.question;
    for (const id of ["start-boundary", "boundary"]) $(id).textContent = study.scale.boundary;
    rubric($("start-rubric"));
    rubric($("help-rubric"));
    for (const grade of study.scale.grades) $("help-keys").append(element("kbd", "", grade.key), document.createTextNode(" "));
    buildGrades();
    if (!study.consented) { show("start"); $("start-title").focus(); } else forward(-1);
  })();
})();
