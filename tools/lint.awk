# lint.awk: the rules of tools/lint for C. Reads the files twice in its mind: the raw line for
# includes, the stripped line (comments and strings blanked) for words of code.

function say(rule, text) {
    printf "%s:%d: %s [%s]\n", FILENAME, FNR, text, rule
}

# The line without comments, strings and character constants; state is kept over lines in
# in_comment.
function strip(line,    out, i, c, d, n) {
    out = ""
    n = length(line)
    for (i = 1; i <= n; i++) {
        c = substr(line, i, 1)
        d = substr(line, i, 2)
        if (in_comment) {
            if (d == "*/") { in_comment = 0; i++ }
            continue
        }
        if (d == "/*") { in_comment = 1; i++; continue }
        if (d == "//") break
        if (c == "\"" || c == "'") {
            for (i++; i <= n && substr(line, i, 1) != c; i++)
                if (substr(line, i, 1) == "\\") i++
            out = out (c == "\"" ? "\"\"" : "0")
            continue
        }
        out = out c
    }
    return out
}

function room_of(file) {
    if (file ~ /^src\/[a-z]+\//) { sub(/^src\//, "", file); sub(/\/.*/, "", file); return file }
    if (file ~ /^lab\//) return "lab"
    return ""
}

BEGIN {
    see["base"] = " consign base "
    see["core"] = " consign base core "
    see["store"] = " consign base core store "
    see["transport"] = " consign base core transport "
    see["flow"] = " consign base core store flow "
    see["conf"] = " consign base core conf "
    see["host"] = " consign base core host "
    see["lab"] = " consign base core conf store transport flow host lab "
    see["lib"] = " consign base core conf host lib "
    see["cli"] = " consign base core conf store transport flow host lab lib cli "
    banned = "strcpy|strcat|stpcpy|sprintf|vsprintf|gets|strtok|alloca|system|popen|atoi|atol|atoll" \
        "|atof|rand|srand|random|setjmp|longjmp"
    call = "(^|[^A-Za-z0-9_.>])(" banned ")[ ]*\\("
}

FNR == 1 {
    in_comment = 0
    function_line = 0
    room = room_of(FILENAME)
    if (FILENAME !~ /^(test|bench)\// && $0 !~ /^\/\*/)
        say("opening", "does not open with a comment that says what it is for")
}

/^#[ ]*include/ {
    header = $0
    sub(/^#[ ]*include[ ]*["<]/, "", header)
    sub(/[">].*/, "", header)
    if (room != "" && $0 ~ /"/ && header ~ /\//) {
        target = header
        sub(/\/.*/, "", target)
        if (index(see[room], " " target " ") == 0) say("room", room " must not include " header)
    }
    if (header == "sqlite3.h" && FILENAME !~ /^(src\/store\/(sqlite[a-z_]*\.[ch]|db\.c)|bench\/|test\/|examples\/)/ &&
        FILENAME != "include/consign/sqlite.h")
        say("client", "sqlite3.h belongs to the SQLite driver")
    if (header == "yaml.h" && FILENAME !~ /^(src\/conf\/yaml\.c|test\/)/)
        say("client", "yaml.h belongs to src/conf/yaml.c")
    if (header == "jansson.h" && FILENAME !~ /^(src\/store\/(run|sqlite_apply|sqlite_hand)\.c|src\/cli\/|lab\/|test\/)/)
        say("client", "jansson.h belongs to the handlers and the command line")
}

{
    code = strip($0)
    if (code ~ call) {
        word = code
        match(word, call)
        word = substr(word, RSTART, RLENGTH)
        gsub(/[^a-z]/, "", word)
        say("call", "call of " word)
    }
    if (code ~ /typedef[ ]+(struct|union)/ && FILENAME !~ /^include\//)
        say("typedef", "typedef of a struct")
    if (code ~ /^\{/ || code ~ /^[a-z].*\)[ ]*\{$/) function_line = FNR
    if (code ~ /^\}/ && function_line) {
        if (FNR - function_line > 70) say("long", "a function of " FNR - function_line " lines")
        function_line = 0
    }
    if (FNR == 1001) say("long", "a file of more than 1,000 lines")
}
