// Applies the chosen colours before the first paint; by default those of the system.
"use strict";
try {
  const chosen = localStorage.getItem("shoal-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be switched off: then the system's colours it is.
}
