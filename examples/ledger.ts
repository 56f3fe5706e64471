/** Stands for the payment provider: it charges whenever it is asked to, so that a double charge shows. */

import { randomUUID } from 'node:crypto'

export interface Charge {
  readonly id: string
  readonly account: string
  readonly amount: number
  readonly currency: string
  readonly reference: string | undefined
  readonly refunded: number
}

/** Every charge that was made, in this process's memory. */
export class Ledger {
  readonly #charges = new Map<string, Charge>()

  charge(order: Omit<Charge, 'id' | 'refunded'>): Charge {
    const charge = { id: `pay_${randomUUID()}`, ...order, refunded: 0 }
    this.#charges.set(charge.id, charge)
    return charge
  }

  /** The charge as it is afterwards. */
  refund(charge: Charge, amount: number): Charge {
    const refunded = { ...charge, refunded: charge.refunded + amount }
    this.#charges.set(charge.id, refunded)
    return refunded
  }

  chargesOf(account: string): Charge[] {
    return [...this.#charges.values()].filter((charge) => charge.account === account)
  }
}
