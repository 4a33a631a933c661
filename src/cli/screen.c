/* screen.c: a picture is a text, and the terminal is told to show it with four sequences that every
 * terminal of the last decades knows: the other screen, the corner, to the end of the line, to the
 * end of the screen. Only the line that is painted next is cleared, so that nothing flickers.
 *
 * What always holds: the terminal is given back on every way out, a signal's and Ctrl-Z's, too.
 * Signals are blocked while the screen is open and read from a descriptor, so that none comes
 * between two of its writes. */
#include "cli/screen.h"
#include "cli/width.h"
#include "host/clock.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const char enter[] = "\033[?1049h\033[?25l", leave[] = "\033[?25h\033[?1049l";
enum { ROWS = 24, COLUMNS = 80, SMALLEST = 2 };

/* ---- fitting ---- */

/* Bytes of the colour sequence at s, or 0. */
static size_t colour(const char *s, size_t n) {
    size_t i = 2;
    if (n < 3 || s[0] != '\033' || s[1] != '[')
        return 0;
    while (i < n && ((s[i] >= '0' && s[i] <= '9') || s[i] == ';'))
        i++;
    return i < n && s[i] == 'm' ? i + 1 : 0;
}

/* One line; what is cut off may have held the end of a colour. */
static void fit_line(FILE *to, const char *s, size_t n, unsigned columns) {
    size_t left = columns, size = 0;
    bool coloured = false;
    for (size_t i = 0; i < n; i += size) {
        size = colour(s + i, n - i);
        if (size > 0) {
            coloured = true;
            (void)fwrite(s + i, 1, size, to);
            continue;
        }
        const char *next = memchr(s + i, '\033', n - i);
        size_t plain = next != NULL && next > s + i ? (size_t)(next - s) - i : n - i;
        size_t fits = text_fit((csn_bytes){s + i, plain}, left);
        left -= text_width((csn_bytes){s + i, fits});
        (void)fwrite(s + i, 1, fits, to);
        size = plain;
        left = fits < plain ? 0 : left;
    }
    (void)fputs(coloured ? "\033[0m" : "", to);
}

static unsigned lines_of(const char *text) {
    unsigned n = 0;
    for (const char *s = text; *s != '\0'; n++) {
        s += strcspn(s, "\n");
        s += *s == '\n';
    }
    return n;
}

/* What was there goes before the line is written: behind one that is as long as the terminal is wide
 * it would take the last character along. The last line takes all below it away. */
static void begin_line(FILE *to, unsigned i, bool last) {
    (void)fprintf(to, "%s%s", i > 0 ? "\r\n" : "", last ? "\033[J" : "\033[K");
}

void screen_fit(FILE *to, const char *text, unsigned rows, unsigned columns) {
    unsigned lines = lines_of(text), shown = lines <= rows ? lines : rows - 1;
    const char *s = text;
    for (unsigned i = 0; i < shown; i++) {
        size_t n = strcspn(s, "\n");
        begin_line(to, i, i + 1 == lines);
        fit_line(to, s, n, columns);
        s += n + (s[n] == '\n');
    }
    if (shown < lines) {
        char line[80];
        struct text t;
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_SCREEN_MORE, lines - shown);
        begin_line(to, shown, true);
        fit_line(to, line, t.used, columns);
    }
}

/* ---- the terminal ---- */

static void take(struct screen *s) {
    struct termios now = s->before;
    now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    now.c_cc[VMIN] = 1;
    now.c_cc[VTIME] = 0;
    if (s->keys)
        (void)tcsetattr(s->in_fd, TCSADRAIN, &now);
    (void)fputs(enter, s->to);
    (void)fflush(s->to);
}

static void give_back(struct screen *s) {
    (void)fputs(leave, s->to);
    (void)fflush(s->to);
    if (s->keys)
        (void)tcsetattr(s->in_fd, TCSADRAIN, &s->before);
}

bool screen_open(struct screen *s, FILE *to, int in_fd, int out_fd) {
    static const int heard[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
    sigset_t set;
    *s = (struct screen){.to = to, .in_fd = in_fd, .out_fd = out_fd, .signal_fd = -1};
    s->keys = tcgetattr(in_fd, &s->before) == 0;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(heard); i++)
        (void)sigaddset(&set, heard[i]);
    if (sigprocmask(SIG_BLOCK, &set, &s->mask_before) != 0)
        return false;
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signal_fd < 0) {
        (void)sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
        return false;
    }
    take(s);
    return true;
}

void screen_close(struct screen *s) {
    give_back(s);
    (void)close(s->signal_fd);
    (void)sigprocmask(SIG_SETMASK, &s->mask_before, NULL);
}

/* Stands still, terminal given back, until somebody continues the process. It is the signal's own
 * doing, which the system leaves out where no shell could continue it. */
static void pause_here(struct screen *s) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTSTP);
    give_back(s);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    take(s);
}

static enum screen_news take_signals(struct screen *s) {
    struct signalfd_siginfo got;
    enum screen_news news = SCREEN_TIME;
    while (news != SCREEN_SIGNAL && read(s->signal_fd, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGTSTP)
            pause_here(s);
        news = got.ssi_signo == SIGTSTP || got.ssi_signo == SIGWINCH ? SCREEN_SIZE : SCREEN_SIGNAL;
        s->signal = (int)got.ssi_signo;
    }
    return news;
}

/* q, Q, Escape alone and the end of the input quit; other keys are let pass. */
static enum screen_news take_keys(const struct screen *s) {
    char key[64];
    ssize_t n = read(s->in_fd, key, sizeof key);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? SCREEN_TIME : SCREEN_QUIT;
    bool quit = n == 0 || (n == 1 && key[0] == '\033') || memchr(key, 'q', (size_t)n) != NULL ||
                memchr(key, 'Q', (size_t)n) != NULL;
    return quit ? SCREEN_QUIT : SCREEN_TIME;
}

enum screen_news screen_wait(struct screen *s, csn_usec longest) {
    csn_usec until = clock_now() + longest, left;
    enum screen_news news = SCREEN_TIME;
    while (news == SCREEN_TIME && (left = until - clock_now()) > 0) {
        struct pollfd fd[] = {{.fd = s->signal_fd, .events = POLLIN},
                              {.fd = s->keys ? s->in_fd : -1, .events = POLLIN}};
        struct timespec ts = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};
        if (ppoll(fd, ARRAY_LEN(fd), &ts, NULL) <= 0)
            continue;
        if (fd[0].revents != 0)
            news = take_signals(s);
        if (news == SCREEN_TIME && fd[1].revents != 0)
            news = take_keys(s);
    }
    return news;
}

bool screen_paint(struct screen *s, const char *text) {
    struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
    bool known = ioctl(s->out_fd, TIOCGWINSZ, &size) == 0 && size.ws_row >= SMALLEST &&
                 size.ws_col >= SMALLEST;
    (void)fputs("\033[H", s->to);
    screen_fit(s->to, text, known ? size.ws_row : ROWS, known ? size.ws_col : COLUMNS);
    return fflush(s->to) == 0;
}
