// A photo from the camera, where the browser has one: on localhost and over HTTPS.

import { announce, fill, h } from "./dom.js";

const QUALITY = 0.92; // of the JPEG

/** A button that opens the camera, and its picture. Calls `take(file)`. Null without a camera. */
export function cameraBox(take) {
  const devices = navigator.mediaDevices;
  if (!devices?.getUserMedia) return null;
  const open = h("button", { type: "button", class: "quiet" }, "Use the camera");
  const room = h("div", { class: "camera-room" });
  let stream = null;

  function close() {
    removeEventListener("hashchange", close);
    stream?.getTracks().forEach((track) => track.stop());
    stream = null;
    fill(room);
    open.hidden = false;
  }

  async function start() {
    open.hidden = true;
    try {
      stream = await devices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      close();
      fill(room, h("p", { class: "complaint", role: "alert" }, refusal(error)));
      return;
    }
    addEventListener("hashchange", close); // another page of the console
    const video = h("video", { "aria-label": "The camera's picture", playsinline: true });
    video.muted = true;
    video.srcObject = stream;
    const shoot = h("button", { type: "button", class: "primary" }, "Take the photo");
    const leave = h("button", { type: "button", class: "quiet" }, "Close the camera");
    shoot.disabled = true;
    video.addEventListener("loadeddata", () => (shoot.disabled = false));
    shoot.addEventListener("click", async () => {
      const file = await photo(video);
      close();
      announce("Photo taken");
      take(file);
    });
    leave.addEventListener("click", close);
    fill(room, video, h("div", { class: "actions" }, shoot, leave));
    await video.play().catch(() => {});
  }

  open.addEventListener("click", start);
  return h("div", { class: "camera" }, open, room);
}

async function photo(video) {
  const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
  return new File([blob], "camera.jpg", { type: "image/jpeg" });
}

function refusal({ name, message }) {
  if (name === "NotAllowedError")
    return "The browser does not permit the camera: allow it for this page, or choose a file.";
  if (name === "NotFoundError") return "There is no camera: choose a file.";
  return `The camera cannot be used (${message}): choose a file.`;
}
