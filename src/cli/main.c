/* main.c: the streams, and nothing else. */
#include "base/message.h"
#include "cli/command.h"
#include <stdlib.h>
#include <unistd.h>

enum { EXIT_WRITE = 70 };

int main(int argc, char **argv) {
    struct out o = {.to = stdout, .err = stderr};
    out_terminal(&o, isatty(STDOUT_FILENO) == 1, isatty(STDERR_FILENO) == 1, getenv("NO_COLOR"),
                 getenv("TERM"));
    int code = command_main(argc, argv, &o);
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && code == 0) {
        message_print(stderr, MSG_COMMAND_WRITE);
        return EXIT_WRITE;
    }
    return code;
}
