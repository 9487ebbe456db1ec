/** Makes `Session.files`, copies included. */
import type { Files } from "../Files.ts"
import * as Client from "./Client.ts"
import * as Copy from "./Copy.ts"
import type { Guest } from "../session/Guest.ts"

export const make = (guest: Guest): Files => {
  const client = Client.makeClient(guest)
  const files = Client.make(guest, client)
  return { ...files, ...Copy.make(client, files) }
}
