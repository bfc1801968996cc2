// Speech from the microphone as a WAV file, where the browser permits it: on localhost and over HTTPS.

import { announce, fill, h } from "./dom.js";

const RATE = 16_000; // of speech models
const LONGEST_SECS = 300;

/** A button that records. Calls `take(file)` at the end. Null without a microphone. */
export function microphoneBox(take) {
  const devices = navigator.mediaDevices;
  if (!devices?.getUserMedia || !globalThis.MediaRecorder) return null;
  const button = h("button", { type: "button", class: "quiet" }, "Record speech");
  const note = h("p", { class: "hint" });
  let recorder = null;

  async function start() {
    let stream;
    try {
      stream = await devices.getUserMedia({ audio: true });
    } catch (error) {
      fill(note, refusal(error));
      return;
    }
    const pieces = [];
    recorder = new MediaRecorder(stream);
    const end = () => recorder?.state === "recording" && recorder.stop();
    let seconds = 0;
    const timer = setInterval(() => {
      seconds += 1;
      fill(note, `Recording … ${seconds} s`);
      if (seconds >= LONGEST_SECS) end();
    }, 1000);
    addEventListener("hashchange", end, { once: true }); // another page of the console
    recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    recorder.addEventListener("stop", async () => {
      clearInterval(timer);
      stream.getTracks().forEach((track) => track.stop());
      recorder = null;
      button.textContent = "Record speech";
      try {
        const file = await wavFile(new Blob(pieces));
        fill(note);
        announce("Recorded");
        take(file);
      } catch (error) {
        fill(note, `The recording cannot be used (${error.message}).`);
      }
    });
    recorder.start();
    button.textContent = "Stop recording";
    fill(note, "Recording …");
  }

  button.addEventListener("click", () => (recorder ? recorder.stop() : start()));
  return h("div", { class: "microphone" }, button, note);
}

/** What a browser has recorded, in its own format, as 16-bit mono WAV. */
async function wavFile(blob) {
  const context = new AudioContext();
  try {
    const sound = await context.decodeAudioData(await blob.arrayBuffer());
    const length = Math.max(1, Math.round(sound.duration * RATE));
    const offline = new OfflineAudioContext(1, length, RATE);
    const source = offline.createBufferSource();
    source.buffer = sound;
    source.connect(offline.destination);
    source.start();
    const samples = (await offline.startRendering()).getChannelData(0);
    return new File([wav(samples, RATE)], "speech.wav", { type: "audio/wav" });
  } finally {
    context.close();
  }
}

/** A WAV file of samples from -1 to 1. */
export function wav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((c, index) => view.setUint8(at + index, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => {
    const limited = Math.max(-1, Math.min(1, sample));
    view.setInt16(44 + 2 * index, Math.round(limited * 32767), true);
  });
  return view.buffer;
}

function refusal({ name, message }) {
  if (name === "NotAllowedError")
    return "The browser does not permit the microphone: allow it for this page, or choose a file.";
  if (name === "NotFoundError") return "There is no microphone: choose a file.";
  return `The microphone cannot be used (${message}): choose a file.`;
}
