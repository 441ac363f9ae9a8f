// Words beside the pointer.

import {$} from "./state.js";

export function showTip(event, words) {
  const tip = $("tip");
  tip.textContent = words;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), below = event.clientY + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below}px`;
}

export function hideTip() {
  $("tip").hidden = true;
}
