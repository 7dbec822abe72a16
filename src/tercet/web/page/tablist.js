// Arrow keys for tabs.

/** Open tabs with the left and right arrow keys. @param {HTMLElement} row the element of the tabs */
export function openByArrows(row) {
  row.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const all = [...row.querySelectorAll("button")];
    const from = all.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    const to = all[(from + (step ?? 0) + all.length) % all.length];
    if (step === undefined || to === undefined) return;
    event.preventDefault();
    to.focus();
    to.click();
  });
}
