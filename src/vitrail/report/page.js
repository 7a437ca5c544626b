// Slider, copy buttons, and details that open for printing. Without this script the last grid is shown.
"use strict";

for (const slider of document.querySelectorAll(".slider")) {
  const control = slider.querySelector(".control");
  if (!control) continue;
  const frames = [...slider.querySelectorAll(".frame")];
  const range = control.querySelector("input");
  const output = control.querySelector("output");
  const play = control.querySelector(".play");
  let timer = 0;

  const show = () => {
    const at = Number(range.value);
    frames.forEach((frame, i) => { frame.hidden = i !== at; });
    const when = frames[at].querySelector("figcaption").textContent;
    output.textContent = when;
    range.setAttribute("aria-valuetext", when);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  };
  const step = () => {
    if (range.value === range.max) return stop();
    range.value = Number(range.value) + 1;
    show();
  };
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (range.value === range.max) range.value = range.min;
    show();
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(step, 700);
  });
  range.addEventListener("input", () => { stop(); show(); });
  control.hidden = false;
  show(); // a reloaded page may restore the slider's position
}

for (const code of document.querySelectorAll(".code")) {
  const button = code.querySelector(".copy");
  const text = code.querySelector("code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  button.hidden = false;
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
