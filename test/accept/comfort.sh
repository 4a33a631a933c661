#!/usr/bin/env bash
# Comfort at the command line: completion in the real shells, manual pages that a linter and a reader
# take, colours and pictures for a terminal and for nothing else. A shell or a linter that is not here
# is said, not passed.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

missing() {
    echo "        $1 is not here: $2"
}

# bash_offers WANTED WORD…: what bash has after a tab behind these words.
bash_offers() {
    bash --norc -c 'set -f; source <(consign completion bash)
        wanted=$1; shift
        complete -p consign >/dev/null || exit 1
        COMP_WORDS=(consign "$@") COMP_CWORD=$#
        _consign
        [ "${COMPREPLY[*]}" = "$wanted" ] || { echo "offered: ${COMPREPLY[*]}"; exit 1; }' - "$@"
}

fish_offers() { # WANTED LINE
    local got
    # shellcheck disable=SC2016  # fish expands it
    got=$(HOME=$work fish --no-config -c 'consign completion fish | source; complete -C $argv[1]' "$2" |
        cut -f1 | tr '\n' ' ')
    [ "$got" = "$1 " ] || { echo "offered: $got"; return 1; }
}

# A terminal of zsh's own, in which the line is typed, a tab pressed, and return.
zsh_offers() { # WANTED LINE
    cat >typed.zsh <<'END'
zmodload zsh/zpty
until_said() {
    local line
    repeat 600; do
        while zpty -rt z line; do said+=$line; done
        [[ $said == *$1* ]] && return 0
        sleep 0.1
    done
    return 1
}
zpty z zsh -f -i
zpty -w z "autoload -Uz compinit; compinit -u -D; source <(consign completion zsh); bindkey '^I' complete-word"
zpty -w z "print lo''aded"
until_said loaded || exit 1
zpty -w -n z "print -r -- <$2"$'\t'
until_said "<$2" || exit 1
zpty -w -n z $'\C-a\C-k'
zpty -w -n z "$2"$'\t'
until_said "$1" || { print -r -- "said: $said"; exit 1; }
zpty -d z
END
    HOME=$work timeout 120 zsh -f typed.zsh "$1" "$2"
}

check 'a shop' shop
check 'bash: nouns' bash_offers event ev
check 'bash: verbs' bash_offers 'retry release' event re
check 'bash: flags of one command' bash_offers '--status --store' event list --st
check 'bash: words of a value' bash_offers 'sending sent strange' event list --status s
check 'bash: divided at =' bash_offers 'json jsonl' status --output = js
check 'bash: codes' bash_offers 'CSN-9001 CSN-9002' explain CSN-90
check 'bash: stores of this configuration' bash_offers 'orders stock' lanes -c demo/consign.yaml --store ''
check 'bash: files' bash_offers demo/consign.yaml -c demo/consign.y
if command -v fish >/dev/null; then
    check 'fish: nouns' fish_offers event 'consign ev'
    check 'fish: words of a value' fish_offers 'sending sent strange' 'consign event list --status s'
    check 'fish: files' fish_offers demo/consign.yaml 'consign -c demo/consign.y'
else
    missing fish 'its completion is tested by its form only'
fi
if command -v zsh >/dev/null; then
    check 'zsh: a word is completed' zsh_offers 'consign event list --status failed' 'consign event list --status f'
else
    missing zsh 'its completion is tested by its form only'
fi

check 'an unknown shell is refused' code 64 consign completion csh

pages() { # how many files of man1 the table of commands asks for
    consign help -o jsonl | wc -l
}

# Where the pages are not installed their references lead nowhere; a Chinese stop is no delimiter.
lint_pages() { # DIR LEVEL
    local said
    said=$(mandoc -T lint -W "$2" "$1"/man1/* "$1"/man5/* 2>/dev/null |
        grep -v -e 'referenced manual not found' -e 'makewhatis')
    [ -z "$said" ] || { echo "$said"; return 1; }
}

check 'all manual pages' consign help --man --dir pages
check 'a page for each command' test "$(find pages/man1 -name 'consign-*.1' | wc -l)" = "$(pages)"
check 'all of them in Chinese' consign --lang zh-CN help --man --dir pages.zh
if command -v mandoc >/dev/null; then
    check 'mandoc finds nothing to say' lint_pages pages style
    check 'nor in Chinese' lint_pages pages.zh warning
    mandoc -T utf8 pages/man5/consign.yaml.5 | sed 's/.\x08//g' >yaml.txt
    check 'a page reads well' says yaml.txt 'relay.lease' 'a duration from 1s to 1h' 'Default: 30s.'
else
    missing mandoc 'the pages are tested by their form only'
fi
check 'an unknown topic is refused' code 64 consign help --man evnt
check 'a folder that cannot be made is said' code 69 consign help --man --dir /proc/nowhere/pages

# ---- a terminal of its own

esc=$(printf '\033')

# on_terminal ROWS COLUMNS COMMAND: what the terminal is told is in screen.txt; what comes in is typed.
on_terminal() {
    rm -f screen.txt top.pid
    TERM=${term:-xterm} timeout 120 script -qefc "stty rows $1 cols $2; $3" screen.txt >/dev/null
}

shown() { # TEXT…: all of them on the screen so far
    local text
    for text in "$@"; do grep -sqF -- "$text" screen.txt || return 1; done
}

plain() { # FILE: no sequence for a terminal in it
    ! grep -q "$esc" "$1" || { echo 'a sequence for a terminal:'; cat -v "$1"; return 1; }
}

given_back() { # after the last picture comes the old screen with its cursor
    tail -c 400 screen.txt | tr -d '\n' | grep -qF "${esc}[?25h${esc}[?1049l" && shown "${esc}[?1049h"
}

# An open terminal needs an end of its own: a pipe that stays open until it is closed here. A shell
# with jobs stands between, as it does for people.
top_on_terminal() { # ROWS COLUMNS [WORDS]
    cat >job.sh <<END
set -m
(echo \$BASHPID >top.pid; exec consign top -c demo/consign.yaml ${3-})
code=\$?
while [ "\$code" = 148 ]; do
    echo 'the shell is back'
    until [ -f go.on ]; do sleep 0.1; done
    fg >/dev/null
    code=\$?
done
exit "\$code"
END
    rm -f keys go.on screen.txt top.pid && mkfifo keys
    on_terminal "$1" "$2" 'exec bash job.sh' <keys &
    pid[screen]=$!
    exec 3>keys
    within 60 shown 'sqlite 3'
}

type_in() { printf '%s' "$1" >&3; }

top_ends() { # CODE
    ends screen "$1"
    local got=$?
    exec 3>&-
    return "$got"
}

state_is() { # LETTER: of the process that paints
    [ "$(ps -o state= -p "$(cat top.pid)" | cut -c1)" = "$1" ]
}

stopped_and_given_back() {
    within 60 shown 'the shell is back' && state_is T && shown "${esc}[?25h${esc}[?1049l"
}

taken_again() {
    [ "$(grep -oF "${esc}[?1049h" screen.txt | wc -l)" -ge 2 ]
}

count_is() { # N TEXT: so many lines of screen.txt have it
    [ "$(grep -cF -- "$2" screen.txt)" -ge "$1" ]
}

quick_leases
check 'a daemon' up a
check 'top paints a terminal' top_on_terminal 40 100
check 'and paints it again' within 60 count_is 3 'PRODUCT'
order 8001 A 1
check 'rates appear after two heartbeats' within 60 grep -qE '(orders|stock) +[0-9]+\.[0-9]' screen.txt
type_in x
check 'another key is no end' state_is S
type_in q
check 'q ends it' top_ends 0
check 'the terminal is given back' given_back

check 'top on a small terminal' top_on_terminal 8 30
check 'it says what does not fit' within 60 shown 'more lines'
kill -TERM "$(cat top.pid)"
check 'a signal ends it' top_ends 143
check 'and the terminal is given back' given_back

check 'top, to be stopped' top_on_terminal 40 100 '--lang zh-CN'
kill -TSTP "$(cat top.pid)"
check 'Ctrl-Z gives the terminal back and stops' stopped_and_given_back
touch go.on
check 'going on takes it again' within 60 taken_again
type_in q
check 'then q ends it' top_ends 0

check 'without a terminal top is one picture' consign top -c demo/consign.yaml
consign top -c demo/consign.yaml >top.out 2>top.err
check 'it says so' says top.err 'one picture'
check 'and has no sequences' plain top.out
check 'top for programs' consign top --once --json -c demo/consign.yaml
consign top --once --json -c demo/consign.yaml >top.json
check 'it is status with rates' test 'top|2|2' = \
    "$(json "$work/top.json" "SELECT json_extract(j, '\$.kind'), json_array_length(j, '\$.rates'),
        json_array_length(j, '\$.stores') FROM doc")"
check 'a daemon that stops clean' stop a

change orders "UPDATE outbox_events SET status = 'failed' WHERE event_id = 'E-8001-1'"
on_terminal 40 100 'consign status -c demo/consign.yaml; consign nonsense' </dev/null
check 'a terminal gets colours' shown "${esc}[1mCHANNEL${esc}[0m" "${esc}[31m1${esc}[0m" "${esc}[31merror CSN-8001${esc}[0m"
on_terminal 40 100 'NO_COLOR=1 consign status -c demo/consign.yaml; NO_COLOR=1 consign nonsense' </dev/null
check 'not with NO_COLOR' plain screen.txt
on_terminal 40 100 'consign status -c demo/consign.yaml --no-color; consign nonsense --no-color' </dev/null
check 'not with --no-color' plain screen.txt
term=dumb on_terminal 40 100 'consign status -c demo/consign.yaml; consign top -c demo/consign.yaml' </dev/null
check 'not on a dumb terminal' plain screen.txt
consign status -c demo/consign.yaml >status.out 2>&1
check 'nor in a file' plain status.out

on_terminal 40 100 'consign lab run A1 2>&1' </dev/null
check 'long work says how far it is' shown '1/1  A1'
consign lab run A1 >lab.out 2>lab.err
check 'on a terminal only' test ! -s lab.err
summary
