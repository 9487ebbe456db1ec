/** The files of a session: small questions, contents and trees. */
import type { Files } from "../Files.ts"
import * as CopyFiles from "./Copy.ts"
import * as SessionFiles from "./Client.ts"
import type { Guest } from "../session/Guest.ts"

/** Files over a session's guest. */
export const make = (guest: Guest): Files => {
  const client = SessionFiles.makeClient(guest)
  const files = SessionFiles.make(guest, client)
  return { ...files, ...CopyFiles.make(client, files) }
}
