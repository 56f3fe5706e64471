/** DynamoDB's errors: which of them pass, and how they are told. */

/** What is looked at of an error that the SDK throws. */
interface SdkError {
  readonly name?: string
  readonly message?: string
  /** Which side is at fault; only on what DynamoDB itself answered. */
  readonly $fault?: string
  readonly $metadata?: { readonly httpStatusCode?: number }
}

/** An error that DynamoDB answered. Its name is the `reason` in metrics and the `dynamo_error_code` in logs. */
export class DynamoDBError extends Error {
  override readonly name = 'DynamoDBError'
  readonly code: string
  readonly logFields: { readonly dynamo_error_code: string }

  constructor(error: SdkError) {
    super(error.message, { cause: error })
    this.code = codeOf(error)
    this.logFields = { dynamo_error_code: this.code }
  }
}

/** Name of DynamoDB's error; of a reply that is none of DynamoDB's, as a gateway sends it, the status: `HTTP502`. */
export function codeOf(error: unknown): string {
  const { name, $fault, $metadata } = (error ?? {}) as SdkError
  const status = $metadata?.httpStatusCode
  return $fault === undefined && status !== undefined ? `HTTP${status}` : (name ?? 'Unknown')
}

/** Did the write find that its condition does not hold? That is an answer, and never tried again. */
export function isConditionFailed(error: unknown): boolean {
  return codeOf(error) === 'ConditionalCheckFailedException'
}

/** Too many calls, or a write in the way. */
const PASSING: ReadonlySet<string> = new Set([
  'ProvisionedThroughputExceededException',
  'ThrottlingException',
  'RequestLimitExceeded',
  'TransactionConflictException',
  'ReplicatedWriteConflictException',
])

/** Will the same call do better a little later? */
export function isPassing(error: unknown): boolean {
  return PASSING.has(codeOf(error)) || ((error as SdkError | null)?.$metadata?.httpStatusCode ?? 0) >= 500
}

/** Is the item more than DynamoDB takes? */
export function isItemTooLarge(error: unknown): boolean {
  return codeOf(error) === 'ValidationException' && /item size/i.test((error as SdkError).message ?? '')
}

/** The error as it is thrown: what DynamoDB answered by its code, anything else (network, credentials) as it is. */
export function toldOf(error: unknown): unknown {
  const isAnswer = (error as SdkError | null)?.$metadata?.httpStatusCode !== undefined
  return isAnswer ? new DynamoDBError(error as SdkError) : error
}
