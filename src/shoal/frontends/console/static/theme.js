// The colours somebody chose, before anything is painted. Without a choice the system's hold.
"use strict";
try {
  const chosen = localStorage.getItem("shoal-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be switched off: then the system's colours it is.
}
