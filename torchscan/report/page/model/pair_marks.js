// How a row of two sides is marked: by a color, a sign and a word.

/** @type {Record<string, string>} */
export const SIGNS = { added: "+", removed: "−", changed: "~", inside: "↓" };

/** @type {Record<string, string>} */
export const WORDS = { added: "added", removed: "removed", changed: "changed", inside: "differs inside" };
