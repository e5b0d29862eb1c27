// A button on each block of code that copies what can be run: of a session, the lines behind the prompts.
"use strict";

function codeOf(pre) {
  const lines = pre.textContent.replace(/\n+$/, "").split("\n");
  const prompt = /^(>>>|\.\.\.|\$)( |$)/;
  const session = lines.some((line) => /^(>>>|\$) /.test(line));
  const kept = session ? lines.filter((line) => prompt.test(line)) : lines;
  return kept.map((line) => (session ? line.replace(prompt, "") : line)).join("\n") + "\n";
}

function addButtons() {
  if (!navigator.clipboard) return;
  for (const pre of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy-code";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(codeOf(pre));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    pre.parentElement.appendChild(button);
  }
}

addButtons();
