import { defaults } from "../Limits.ts"

/** A share of the guest's disk in bytes; 0, for the agent, is all of it. */
export const diskShare = (mebibytes: number): number => (mebibytes === defaults.diskMiB ? 0 : mebibytes * 1024 * 1024)
