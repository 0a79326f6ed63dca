// Takes the actions of a page: asks first, looks with rfr.js whether the page still has the button, and then the browser
// sends one request to Airflow's REST API. The session's cookie is the only right it has, and Airflow checks it; a page
// of another site can't send JSON with that cookie.
const LONGEST_REQUEST = 30000;
const dialog = document.getElementById("action");
const [problem, settings, confirming, cancelling] = ["problem", "settings", "confirm", "cancel"].map((part) =>
  document.getElementById("action-" + part),
);
let current = null;

function refuse(text) {
  problem.textContent = text;
  problem.hidden = text === "";
}

function call(method, url, body) {
  const headers = { Accept: "application/json" };
  const options = { method, headers, credentials: "same-origin", signal: AbortSignal.timeout(LONGEST_REQUEST) };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  return fetch(url, options);
}

// What Airflow says of a refusal: a text, or problems with fields.
async function reasonOf(answer) {
  try {
    const detail = (await answer.json()).detail;
    const items = Array.isArray(detail) ? detail.map((item) => item.msg) : [detail?.reason ?? detail];
    return items.filter((item) => typeof item === "string").join("; ");
  } catch (error) {
    return "";
  }
}

async function explain(answer) {
  const reason = await reasonOf(answer);
  // The latter of a session that another secret signed.
  if (answer.status === 401 || (answer.status === 403 && reason === "Invalid JWT token")) {
    refuse("You are logged out, so nothing was done. ");
    const login = document.createElement("a");
    login.className = "airflow";
    login.href = dialog.dataset.api + "/auth/login?next=" + encodeURIComponent(location.pathname + location.search);
    login.textContent = "Log in";
    problem.append(login);
    return;
  }
  const said = reason ? ` Airflow says: ${reason}` : "";
  const sentences = {
    403: "You do not have the right to this, so nothing was done.",
    404: `It is not there any more, so nothing was done.${said}`,
    409: `Its state has changed meanwhile, so nothing was done.${said}`,
  };
  refuse(sentences[answer.status] ?? `Airflow refused this with the status ${answer.status}.${said}`);
}

// The same run however often it is asked for: Airflow refuses a second run with its id.
function newRun(values) {
  const now = new Date().toISOString();
  const random = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0"));
  return { dag_run_id: `manual__${now}_${random.join("")}`, logical_date: now, conf: values };
}

// Shows the configuration of a new run: that of another run, without what held for that one alone.
async function prepare() {
  if (current.settings !== null) {
    const answer = await call("GET", current.settings);
    if (!answer.ok) {
      await explain(answer);
      return;
    }
    const taken = (await answer.json()).conf ?? {};
    delete taken.rfr; // its settings of one run
    for (const [name, value] of Object.entries(JSON.parse(dialog.dataset.once))) {
      if (taken[name] === value) {
        delete taken[name];
      }
    }
    current.body.conf = { ...taken, ...current.body.conf };
  }
  settings.querySelector("pre").textContent = JSON.stringify(current.body.conf, null, 2);
  settings.hidden = false;
  confirming.disabled = false;
}

// What the button does: another run may have taken the table over, or another publish may have been refused. The text of
// the dialog is left out, because it says how many other runs wait.
function requestOf(button) {
  const { effect, ...request } = JSON.parse(button?.dataset.request ?? "{}");
  return JSON.stringify([button?.textContent, request]);
}

async function send() {
  // Not again after a lost answer: the first request may have made the run.
  if (!current.isTried) {
    if (!(await refresh(true))) {
      refuse("The page can't be loaded, so nothing was done.");
      confirming.disabled = false;
      return;
    }
    if (requestOf(document.getElementById(current.button)) !== current.shown) {
      refuse("Its state has changed meanwhile, so nothing was done.");
      return;
    }
  }
  current.isTried = true;
  const answer = await call(current.method, current.url, current.body);
  // Only an earlier request of this dialog can have made the run.
  if (!answer.ok && !(current.isNewRun && answer.status === 409)) {
    await explain(answer);
    confirming.disabled = false;
    return;
  }
  const outcome = document.getElementById("outcome");
  outcome.textContent = `${new Date().toISOString().slice(11, 19)} UTC: ${current.done} `;
  outcome.hidden = false;
  if (current.isNewRun) {
    const link = document.createElement("a");
    link.className = "airflow";
    link.href = current.runs + encodeURIComponent(current.body.dag_run_id);
    link.textContent = current.body.dag_run_id;
    outcome.append(link);
  }
  dialog.close();
}

// Takes one step at a time; the dialog stays until its answer is there.
async function attempt(step, lost) {
  cancelling.disabled = confirming.disabled = true;
  refuse("");
  try {
    await step();
  } catch (error) {
    refuse(`Airflow does not answer. ${lost}`);
    confirming.disabled = step === prepare;
  }
  cancelling.disabled = false;
}

function ask(button) {
  current = { ...JSON.parse(button.dataset.request), button: button.id, shown: requestOf(button) };
  document.getElementById("action-name").textContent = confirming.textContent = button.textContent;
  document.getElementById("action-effect").textContent = current.effect;
  settings.hidden = true;
  confirming.disabled = false;
  refuse("");
  dialog.showModal();
  if (current.isNewRun) {
    current.body = newRun(current.body);
    attempt(prepare, "Nothing was done.");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-request]");
  if (button !== null && !dialog.open && !cancelling.disabled) {
    ask(button);
  }
});
confirming.addEventListener("click", () => {
  const again = current.isNewRun ? "Try again: the run is started once at most." : "Look at the state first.";
  attempt(send, `It is not known whether this was done. ${again}`);
});
cancelling.addEventListener("click", () => dialog.close());
dialog.addEventListener("cancel", (event) => {
  if (cancelling.disabled) {
    event.preventDefault();
  }
});
dialog.addEventListener("close", () => {
  // The button that opened it may have been replaced meanwhile.
  document.getElementById(current.button)?.focus();
});
