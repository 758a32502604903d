// Runs before the first paint, so not a module: the stored choice, else the system's.
(() => {
  const key = "fleetadmin.theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const order = ["auto", "light", "dark"];

  function stored() {
    try {
      const choice = localStorage.getItem(key);
      return order.includes(choice) ? choice : "auto";
    } catch {
      return "auto";
    }
  }

  function apply(choice) {
    const theme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    document.documentElement.setAttribute("data-bs-theme", theme);
    document.dispatchEvent(new CustomEvent("theme-changed"));
  }

  let choice = stored();
  apply(choice);
  dark.addEventListener("change", () => apply(choice));
  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.hidden = false;
      button.textContent = button.dataset[choice];
      button.addEventListener("click", () => {
        choice = order[(order.indexOf(choice) + 1) % order.length];
        try {
          localStorage.setItem(key, choice);
        } catch {
          // Storage may be off; the choice then lasts for this page.
        }
        button.textContent = button.dataset[choice];
        apply(choice);
      });
    }
  });
})();
