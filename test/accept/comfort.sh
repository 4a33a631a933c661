#!/usr/bin/env bash
# Comfort at the command line: completion in the real shells, manual pages that a linter and a reader
# take, and an installation that brings both. A shell or a linter that is not here is said, not passed.
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
summary
