/** A list whose members carry their own links: adding and removing are O(1), and neither hashes nor allocates. */

/** A member of at most one list at a time. */
export interface Linked {
  previous: this | undefined
  next: this | undefined
}

/** A queue of objects that can also leave from the middle. */
export class LinkedList<Member extends Linked> {
  first: Member | undefined
  #last: Member | undefined

  /** Adds a member that is in no list. */
  append(member: Member): void {
    member.previous = this.#last
    if (this.#last === undefined) this.first = member
    else this.#last.next = member
    this.#last = member
  }

  /** Removes a member of this list. */
  remove(member: Member): void {
    if (member.previous === undefined) this.first = member.next
    else member.previous.next = member.next
    if (member.next === undefined) this.#last = member.previous
    else member.next.previous = member.previous
    member.previous = undefined
    member.next = undefined
  }
}
