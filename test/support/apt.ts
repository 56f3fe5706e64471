/** Programs that the tests start: those on the PATH, or installed once from Debian's packages. */

import { execFile } from 'node:child_process'
import { accessSync, constants, existsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'

/** A Debian package, for the programs in it that are needed. */
export interface ProgramPackage<Program extends string> {
  /** As apt calls it. */
  readonly name: string
  readonly programs: readonly Program[]
  /** For those who have no apt: what needs the programs, and how to get them. */
  readonly howToGet: string
}

const INSTALL_TIMEOUT_MS = 300_000

/** Shared by all that installs packages for these tests, so that two test files do not run apt at the same time. */
const LOCK_FILE = join(tmpdir(), 'fastify-idempotency-apt.lock')

/**
 * `$1` is the package, the rest are its programs. Installs without starting a service of the package. Run under
 * `flock`, which lets go when it dies; a policy left aside by a run that was killed is put back by the next.
 *
 * A package that the release does not have is taken from its backports, at the mirror that the machine has the release
 * from, without adding them to the machine's sources.
 */
const INSTALL_SCRIPT = `
set -e
package=$1
shift
command -v "$@" >/dev/null && [ "$(command -v "$@" | wc -l)" -eq $# ] && exit 0
policy=/usr/sbin/policy-rc.d
aside=$policy.before-fastify-idempotency
folder=$(mktemp -d)
restore() { rm -f "$policy"; rm -rf "$folder"; if [ -e "$aside" ]; then mv "$aside" "$policy"; fi; }
trap restore EXIT
trap 'exit 1' INT TERM HUP
if [ -e "$policy" ] && [ ! -e "$aside" ]; then mv "$policy" "$aside"; fi
printf '#!/bin/sh\\nexit 101\\n' >"$policy"
chmod 755 "$policy"
export DEBIAN_FRONTEND=noninteractive
sources=/etc/apt/sources.list
apt() { apt-get -qq -o Dir::Etc::SourceList="$sources" -o DPkg::Lock::Timeout=240 "$@"; }
update() {
  # The lock on the package lists is not one that apt can be told to wait for.
  tries=0
  until apt update; do
    tries=$((tries + 1))
    [ "$tries" -lt 20 ] || exit 1
    sleep 2
  done
}
backports() {
  . /etc/os-release
  keys=/usr/share/keyrings/$ID-archive-keyring.gpg
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI) $(COMPONENT)' 'Created-By: Packages' |
    awk -v id="$ID" -v release="$VERSION_CODENAME" -v keys="$keys" \\
      'tolower($1) == id && $2 == release { print "deb [signed-by=" keys "] " $3, release "-backports", $4 }'
}
update
if ! apt --simulate install "$package" >/dev/null 2>&1; then
  { cat "$sources" || true; backports; } >"$folder/sources.list" 2>/dev/null
  sources=$folder/sources.list
  update
fi
apt install -y --no-install-recommends "$package"
`

/**
 * The paths of the programs, installing them first where that is possible.
 * @throws Error saying how to get them
 */
export async function programsOf<Program extends string>(
  wanted: ProgramPackage<Program>,
): Promise<Readonly<Record<Program, string>>> {
  const present = onPath(wanted.programs)
  if (present) return present
  if (!canInstall()) throw new Error(wanted.howToGet)
  await install(wanted)
  const installed = onPath(wanted.programs)
  if (!installed) throw new Error(wanted.howToGet)
  return installed
}

/** The path of a program that is on the PATH. */
export function which(program: string): string | undefined {
  const candidates = (process.env['PATH'] ?? '').split(delimiter).map((folder) => join(folder, program))
  return candidates.find(isExecutable)
}

function onPath<Program extends string>(programs: readonly Program[]): Record<Program, string> | undefined {
  const found = programs.flatMap((program) => {
    const path = which(program)
    return path === undefined ? [] : [[program, path]]
  })
  return found.length === programs.length ? Object.fromEntries(found) : undefined
}

export function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function canInstall(): boolean {
  return process.getuid?.() === 0 && existsSync('/etc/debian_version') && which('apt-get') !== undefined
}

async function install({ name, programs, howToGet }: ProgramPackage<string>): Promise<void> {
  const script = ['sh', '-c', INSTALL_SCRIPT, 'sh', name, ...programs]
  try {
    await promisify(execFile)('flock', [LOCK_FILE, ...script], { timeout: INSTALL_TIMEOUT_MS })
  } catch (error) {
    throw new Error(`apt-get could not install ${name}. ${howToGet}`, { cause: error })
  }
}
