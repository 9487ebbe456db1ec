/** Where this package is. */

/** The directory with package.json and `images/`; it is the same from `src/internal` and from `dist/internal`. */
export const packageDirectory = new URL("../../", import.meta.url)
