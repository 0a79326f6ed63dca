// Follows Airflow's theme, loads the page's live part anew every three seconds, filters the list while somebody types,
// shows explanations and values on hover and focus, copies code, and lets links leave Airflow's frame.
"use strict";

const PERIOD = 3000;
const LONGEST_WAIT = 10000;
const TYPING = 300;
const EXPLAINED = "[aria-description], .point";

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

// The element of the new live part that takes the place of one in the old. Of several with the same label it is the one
// at the same place among them: each row of a table may have a button that says the same.
function again(live, found, element) {
  const named = (other) => other.id || other.dataset.copy || other.getAttribute("href");
  const label = (other) => named(other) ?? other.getAttribute("aria-label") ?? other.textContent;
  const isSame = (other) => label(other) === label(element);
  const same = (part) => [...part.querySelectorAll(element.localName)].filter(isSame);
  const others = same(found);
  return others[same(live).indexOf(element)] ?? others[0];
}

// Returns false where the page's present state is not known. Without a session it returns true: an action is refused then.
async function refresh(isAsked = false) {
  const asked = location.href;
  const live = document.getElementById("live");
  let answer;
  let text;
  try {
    const signal = AbortSignal.timeout(LONGEST_WAIT);
    answer = await fetch(asked, { credentials: "same-origin", cache: "no-store", signal });
    text = await answer.text();
  } catch (error) {
    tell("Airflow does not answer; what is shown may be old.");
    return false;
  }
  if (answer.status === 401) {
    tell("You are logged out; log in to Airflow and load this page again.");
    return true;
  }
  const found = new DOMParser().parseFromString(text, "text/html").getElementById("live");
  const selection = document.getSelection();
  if (found === null || !answer.ok) {
    tell(found === null ? "Airflow has an error; what is shown may be old." : found.textContent.trim());
    return false;
  }
  tell("");
  if (asked !== location.href) {
    return false; // the filter was changed meanwhile
  }
  // What somebody is copying stays.
  if (!isAsked && selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode)) {
    return true;
  }
  for (const open of live.querySelectorAll("details[open][id]")) {
    found.querySelector("#" + CSS.escape(open.id))?.setAttribute("open", "");
  }
  const focused = live.contains(document.activeElement) ? document.activeElement : null;
  const next = focused === null ? null : again(live, found, focused);
  const wasHidden = document.getElementById("tip").hidden;
  live.replaceChildren(...found.childNodes);
  hideTip();
  next?.setAttribute("tabindex", focused.getAttribute("tabindex") ?? "0");
  next?.focus({ preventScroll: true });
  if (wasHidden) {
    hideTip(); // it was sent away with Escape
  }
  return true;
}

async function keepFresh() {
  if (document.visibilityState === "visible") {
    await refresh();
  }
  setTimeout(keepFresh, PERIOD);
}

function filterWhileTyping(form) {
  let timer;
  const apply = () => {
    const query = [...new FormData(form)].filter(([, value]) => value !== "");
    history.replaceState(null, "", "?" + new URLSearchParams(query));
    refresh(true);
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, TYPING);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function showTip(event) {
  const tip = document.getElementById("tip");
  const place = event.target.closest?.(EXPLAINED);
  if (!place) {
    tip.hidden = event.target !== tip;
    return;
  }
  tip.textContent = place.getAttribute("aria-description") ?? place.getAttribute("aria-label");
  tip.hidden = false;
  const where = place.getBoundingClientRect();
  const fits = where.bottom + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, Math.min(where.left, innerWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = (fits ? where.bottom : Math.max(0, where.top - tip.offsetHeight)) + "px";
}

// The arrow keys go from value to value of a chart: with a tab stop for each, nobody would get past it.
function walk(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") {
    hideTip();
  }
  if (step === undefined || !event.target.matches("svg .point")) {
    return;
  }
  const points = [...event.target.closest("svg").querySelectorAll(".point")];
  const next = points[points.indexOf(event.target) + step];
  if (next !== undefined) {
    event.preventDefault();
    event.target.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }
}

async function copy(event) {
  const button = event.target.closest("button[data-copy]");
  if (button === null) {
    return;
  }
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch (error) {
    // Browsers give the clipboard to pages by https and of this machine alone.
    document.getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected: press Ctrl+C";
  }
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
document.addEventListener("click", copy);
// A page that opens under the pointer explains nothing until it is moved.
document.addEventListener("mousemove", (event) => {
  document.addEventListener("mouseover", showTip);
  showTip(event);
}, { once: true });
document.documentElement.addEventListener("mouseleave", hideTip);
document.addEventListener("focusin", showTip);
document.addEventListener("focusout", hideTip);
// A focus from the keyboard may scroll the page.
document.addEventListener("scroll", () => showTip({ target: document.activeElement }), true);
document.addEventListener("keydown", walk);
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("form.filter").forEach(filterWhileTyping);
  if (document.getElementById("live").dataset.live === "yes") {
    setTimeout(keepFresh, PERIOD);
  }
});
