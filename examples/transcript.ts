/** The requests that the demo prints to be pasted into a shell, each with the outcome to expect. */

/**
 * Comment lines say what a request shows, and `# expect <status>, <text that is in the response>` what comes back.
 * No quote, parenthesis, `>` or `?` in them: zsh does not take comments from a prompt and would act on those.
 */
export function transcript(url: string, key: string): string {
  const payment = (amount: number) => `-H 'content-type: application/json' -d '{"amount":${amount},"currency":"EUR"}'`
  const caller = `curl -i ${url}/payments -H 'x-api-key: demo-ada'`
  const keyed = `${caller} -H 'idempotency-key: ${key}'`
  return `
# 1. The first request charges the card.
${keyed} ${payment(4200)}
# expect 201, location: /payments/pay_

# 2. The reply was lost, so the client retries: the recorded response, and no second charge.
${keyed} ${payment(4200)}
# expect 201, idempotent-replayed: true

# 3. The same key for another payment is a mistake.
${keyed} ${payment(9900)}
# expect 422, FST_IDEMPOTENCY_KEY_REUSED

# 4. So is a payment without a key.
${caller} ${payment(4200)}
# expect 400, FST_IDEMPOTENCY_KEY_MISSING

# 5. The card was charged once.
${caller}
# expect 200, count:1
`
}
