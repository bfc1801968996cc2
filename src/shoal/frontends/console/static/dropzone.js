// Choose, drop, photograph or record a file.

import { cameraBox } from "./camera.js";
import { fill, freshId, h } from "./dom.js";
import { microphoneBox } from "./microphone.js";

// Photos that browsers cannot show, but the server may know.
const SHOWN_NOWHERE = /^image\/(tiff|heic|heif|jp2|jpx|x-portable-.*|x-tga)$/;

const KINDS = {
  image: { accept: "image/*", source: cameraBox, preview: imagePreview },
  sound: { accept: "audio/*", source: microphoneBox, preview: soundPreview },
};

/** For an image or a sound. Calls `take(file)`, or `take(null)` for one that must not be sent. */
export function dropZone({ kind = "image", label, take }) {
  const { accept, source, preview } = KINDS[kind];
  const id = freshId("file");
  const input = h("input", { id, type: "file", accept, class: "visually-hidden" });
  const room = h("div", { class: "preview" });
  let url = "";
  const show = (file) => {
    if (!file) return;
    if (url) URL.revokeObjectURL(url);
    url = URL.createObjectURL(file);
    preview(file, url, room, take);
  };
  const zone = h(
    "div",
    { class: "drop" },
    input,
    h(
      "label",
      { for: id, class: "drop-label" },
      h("span", { class: "button-like" }, "Choose a file"),
      h("span", {}, label),
    ),
    source(show),
    room,
  );
  input.addEventListener("change", () => show(input.files[0]));
  for (const happening of ["dragenter", "dragover"]) {
    zone.addEventListener(happening, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    show(event.dataTransfer.files[0]);
  });
  return zone;
}

function imagePreview(file, url, room, take) {
  const image = h("img", { src: url, alt: `Chosen file: ${file.name}` });
  image.addEventListener("load", () => take(file));
  image.addEventListener("error", () => {
    const unknown = SHOWN_NOWHERE.test(file.type);
    const words = unknown
      ? `This browser cannot show ${file.name}; it is sent as it is.`
      : refused(file, "an image");
    fill(room, h("p", { class: unknown ? "hint" : "complaint", role: "alert" }, words));
    take(unknown ? file : null);
  });
  fill(room, image, h("p", { class: "hint" }, file.name));
}

/** Browsers do not play every sound that the server reads, so only the type is checked. */
function soundPreview(file, url, room, take) {
  if (file.type && !/^(audio|video|application)\/(?!json|pdf|zip)/.test(file.type)) {
    fill(room, h("p", { class: "complaint", role: "alert" }, refused(file, "a sound")));
    take(null);
    return;
  }
  const player = h("audio", { src: url, controls: true, "aria-label": `Chosen file: ${file.name}` });
  fill(room, player, h("p", { class: "hint" }, file.name));
  take(file);
}

function refused({ name }, what) {
  return `${name} is not ${what}, or it is damaged: it is not sent. Choose another file.`;
}
