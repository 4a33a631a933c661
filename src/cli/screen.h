/* screen.h: a terminal that is painted whole, again and again, and given back as it was. */
#ifndef CSN_CLI_SCREEN_H
#define CSN_CLI_SCREEN_H

#include "cli/out.h"
#include <signal.h>
#include <termios.h>

enum screen_news { SCREEN_TIME, SCREEN_SIZE, SCREEN_QUIT, SCREEN_SIGNAL };

struct screen {
    FILE *to;
    int in_fd, out_fd, signal_fd;
    struct termios before; /* of in_fd */
    sigset_t mask_before;
    bool keys;  /* in_fd is a terminal */
    int signal; /* that ended it */
};

/* Takes the terminal: the other screen, no cursor, keys without return. From here on signals are
 * heard by screen_wait only. False: errno. */
bool screen_open(struct screen *s, FILE *to, int in_fd, int out_fd);
/* Gives it back. */
void screen_close(struct screen *s);
/* Until something happens, at most for a time. Ctrl-Z is done inside: the terminal is given back
 * until the process goes on. */
enum screen_news screen_wait(struct screen *s, csn_usec longest);
/* Paints a text from the top left corner, cut to the terminal's size. False: nobody is there. */
bool screen_paint(struct screen *s, const char *text);

/* The same on any stream: lines that are too long are cut at the last character that fits, lines
 * that do not fit are counted in the last one. Colours ("\033[…m") take no columns. */
void screen_fit(FILE *to, const char *text, unsigned rows, unsigned columns);

#endif
