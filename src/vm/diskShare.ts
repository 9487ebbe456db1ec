import { defaults } from "../Limits.ts"

/** Converts a disk limit to bytes for the agent; the default limit, the whole disk, becomes 0, which means no limit. */
export const diskShare = (mebibytes: number): number => (mebibytes === defaults.diskMiB ? 0 : mebibytes * 1024 * 1024)
