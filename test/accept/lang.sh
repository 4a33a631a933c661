#!/usr/bin/env bash
# Every word for people in English and in Simplified Chinese: help, errors, explanations, the daemon,
# the demo's files. What programs read is the same in both.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

han() { # FILE: it has Chinese
    grep -qP '\p{Han}' "$1" || { echo "no Chinese:"; head -n 5 "$1"; return 1; }
}

latin() { # FILE: it has none
    ! grep -nP '\p{Han}' "$1"
}

# Both languages of one command, same exit code.
both() {
    local en zh
    "$@" --lang en >en.out 2>&1
    en=$?
    "$@" --lang zh-CN >zh.out 2>&1
    zh=$?
    [ "$en" = "$zh" ] || { echo "exit codes $en and $zh"; return 1; }
    latin en.out && han zh.out
}

# The commands as the reference page lists them.
commands() {
    consign help --markdown --lang en | sed -n 's/^## consign //p'
}

each_help() {
    local line n=0
    while read -r line; do
        n=$((n + 1))
        # shellcheck disable=SC2086  # a command may be two words
        both consign help $line || { echo "help $line"; return 1; }
    done < <(commands)
    [ "$n" -ge 20 ] || { echo "only $n commands"; return 1; }
}

each_code() {
    local n=0 number
    for number in $(consign explain --lang en | grep -oE 'CSN-[0-9]{4}' | sort -u); do
        n=$((n + 1))
        both consign explain "$number" || { echo "$number"; return 1; }
    done
    [ "$n" -ge 50 ] || { echo "only $n codes"; return 1; }
}

each_key() {
    local n=0 key
    for key in $(consign config explain --markdown --lang en | sed -n "s/^## .\(.*\).\$/\1/p"); do
        n=$((n + 1))
        both consign config explain "$key" || { echo "$key"; return 1; }
    done
    [ "$n" -ge 20 ] || { echo "only $n keys"; return 1; }
}

same_json() {
    "$@" -o json --lang en >en.json 2>/dev/null
    "$@" -o json --lang zh-CN >zh.json 2>/dev/null
    [ -s en.json ] && cmp en.json zh.json
}

# Without comments and blank lines: what runs is the same.
runs() {
    sed -E 's/(^|[[:space:]]+)#.*$//' "$1" | grep -v '^[[:space:]]*$'
}

same_demo() {
    consign init -q --dir english --lang en && consign init -q --dir chinese --lang zh-CN || return 1
    han chinese/consign.yaml && latin english/consign.yaml &&
        diff <(runs english/consign.yaml) <(runs chinese/consign.yaml) &&
        cmp english/handlers/reserve.sql chinese/handlers/reserve.sql &&
        diff <(grep -v '^--' english/shop.sql) <(grep -v '^--' chinese/shop.sql)
}

check 'help' both consign help
check 'help of each command' each_help
check 'each error is explained' each_code
check 'each key of the configuration is explained' each_key
check 'the demo' same_demo
config=$work/english/consign.yaml
check 'an event that is not there' both consign event trace nobody -c "$config"
check 'a command that is none' both consign even trace
check 'a configuration that is none' both consign status -c none.yaml
check 'status' both consign status -c "$config"
check 'status for programs is the same' same_json consign status -c "$config"
check 'a code for programs is the same' code 66 consign event trace nobody -c "$config" -o json
check 'a mistake in the configuration' both consign config check -c "$config" --set relay.lease=soon
check 'a language that is none' code 64 consign status -c "$config" --lang klingon

LC_ALL=zh_CN.UTF-8 consign help >locale.out
check 'the locale chooses' han locale.out
LC_ALL='' LC_MESSAGES=zh_CN.UTF-8 consign help >locale.out
check '… by its part for messages' han locale.out
LC_ALL=zh_CN.UTF-8 consign help --lang en >locale.out
check '… and --lang before it' latin locale.out
LC_ALL=C consign help --lang zh-CN >locale.out
check 'a plain locale prints Chinese where it was asked for' han locale.out

check 'the daemon is ready' up a
stop a
check 'a daemon speaks English unless told otherwise' latin a.log
check 'a Chinese daemon is ready' up b CONSIGN_LANGUAGE=zh-CN
check '… and stops' stop b
grep -v '^{' b.log >b.words
check '… and speaks Chinese' han b.words
summary
