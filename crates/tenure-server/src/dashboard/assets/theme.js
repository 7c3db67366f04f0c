// The colours: the system's choice, unless the reader has chosen. A plain script, so that it runs before
// the first paint.
(() => {
  const chosen = localStorage.getItem("tenure.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
