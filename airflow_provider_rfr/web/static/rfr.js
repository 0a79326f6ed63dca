// Follows Airflow's theme, loads the page's live part anew every three seconds, and lets links leave Airflow's frame.
"use strict";

const PERIOD = 3000;
const LONGEST_WAIT = 10000;

function followTheme() {
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch (error) {
    // The browser keeps no storage here: the system's theme is used.
  }
  if (theme === "light" || theme === "dark") {
    document.documentElement.dataset.theme = theme;
  } else {
    delete document.documentElement.dataset.theme;
  }
}

function tell(text) {
  const place = document.getElementById("lost");
  place.textContent = text;
  place.hidden = text === "";
}

async function refresh() {
  const live = document.getElementById("live");
  let answer;
  let text;
  try {
    const signal = AbortSignal.timeout(LONGEST_WAIT);
    answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", signal });
    text = await answer.text();
  } catch (error) {
    tell("Airflow does not answer; what is shown may be old.");
    return;
  }
  if (answer.status === 401) {
    tell("You are logged out; log in to Airflow and load this page again.");
    return;
  }
  const found = new DOMParser().parseFromString(text, "text/html").getElementById("live");
  const selection = document.getSelection();
  if (found === null || !answer.ok) {
    tell(found === null ? "Airflow has an error; what is shown may be old." : found.textContent.trim());
    return;
  }
  tell("");
  // What somebody is copying stays.
  if (selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode)) {
    return;
  }
  for (const open of live.querySelectorAll("details[open][id]")) {
    found.querySelector("#" + CSS.escape(open.id))?.setAttribute("open", "");
  }
  const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  live.replaceChildren(...found.childNodes);
  if (focused !== null) {
    live.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

async function keepFresh() {
  if (document.visibilityState === "visible") {
    await refresh();
  }
  setTimeout(keepFresh, PERIOD);
}

// The frame may not navigate the page that it is in. A link of that page may.
function leaveFrame(event) {
  const link = event.target.closest("a.airflow");
  if (link === null || window.parent === window || event.ctrlKey || event.metaKey || event.button !== 0) {
    return;
  }
  let outer;
  try {
    outer = window.parent.document.createElement("a");
  } catch (error) {
    return;
  }
  event.preventDefault();
  outer.href = link.href;
  window.parent.document.body.append(outer);
  outer.click();
  outer.remove();
}

followTheme();
window.addEventListener("storage", followTheme);
document.addEventListener("click", leaveFrame);
document.addEventListener("DOMContentLoaded", () => {
  if (document.getElementById("live").dataset.live === "yes") {
    setTimeout(keepFresh, PERIOD);
  }
});
