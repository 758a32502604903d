// Buttons with data-ask open a dialog first. Without JavaScript they act at once, as every form does.
const dialog = document.getElementById("confirm");
let waiting = null;

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  const question = button?.dataset.ask ?? event.target.dataset?.ask;
  if (!question || !dialog?.showModal || waiting?.allowed) return;
  event.preventDefault();
  dialog.querySelector(".ask-question").textContent = question;
  dialog.querySelector(".ask-detail").textContent = button?.dataset.askDetail ?? "";
  dialog.querySelector("[value=yes]").textContent = button?.dataset.askYes ?? button?.textContent.trim() ?? "";
  waiting = { form: event.target, button, allowed: false };
  dialog.returnValue = "";
  dialog.showModal();
});

dialog?.addEventListener("close", () => {
  if (dialog.returnValue === "yes" && waiting?.form.isConnected) {
    waiting.allowed = true;
    waiting.form.requestSubmit(waiting.button?.isConnected ? waiting.button : undefined);
  }
  waiting = null;
});
