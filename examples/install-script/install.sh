#!/bin/sh
# An installer of the kind that is piped into a shell. It builds in the current directory, which is what one wants
# of it, and then helps itself to the rest of the machine. Exits 1 when a step failed.
set -u
failed=0

step() {
    if "$@"; then echo "install: done: $*"; else
        echo "install: failed: $*"
        failed=1
    fi
}

build() {
    mkdir -p vendor/widget && printf '#!/bin/sh\necho widget\n' >vendor/widget/widget && chmod +x vendor/widget/widget
}
install_for_me() { mkdir -p "$HOME/.local/bin" && cp vendor/widget/widget "$HOME/.local/bin/"; }
extend_path() { printf 'export PATH="$HOME/.local/bin:$PATH"\n' >>"$HOME/.bashrc"; }
install_for_all() { cp vendor/widget/widget /usr/local/bin/stockade-demo-widget; }
start_at_login() { printf '@reboot root /usr/local/bin/stockade-demo-widget\n' >/etc/cron.d/stockade-demo-widget; }
hook_into_git() { cp vendor/widget/widget .git/hooks/post-checkout; }
fetch_extras() { timeout 5 bash -c 'exec 3<>/dev/tcp/get.widget.example/443'; }

step build
step install_for_me
step extend_path
step install_for_all
step start_at_login
step hook_into_git
step fetch_extras
exit "$failed"
