#!/bin/bash
# The parts of an image that need Debian's tools and file ownership. src/image/Build.ts runs it and explains
# the arguments. It runs as root or under fakeroot, and changes nothing outside OUT.
#
#   build.sh base     ARCH SUITE HOST_ARCH PACKAGES NODE_DIR OUT   → OUT/base.tar  OUT/linux.deb  OUT/packages.tsv
#   build.sh root     BASE_TAR INTERPRETERS_DIR EPOCH UUID OUT     → OUT/root.erofs
#   build.sh scratch  BYTES EPOCH UUID OUT                         → OUT/scratch.qcow2
set -euo pipefail
export LC_ALL=C.UTF-8 TZ=UTC PATH="$PATH:/usr/sbin:/sbin"
umask 022

# The caller keeps our standard input open. However the caller ends, the whole process group ends with it.
exec 9<&0 </dev/null
(
  cat <&9 >/dev/null
  kill -TERM -- "-$$"
) 2>/dev/null &
watcher=$!
exec 9<&-
trap 'kill "$watcher" 2>/dev/null || true' EXIT

say() { printf 'step: %s\n' "$*"; }

# Where Debian is fetched from, if that is configured; otherwise mmdebstrap's default is used. One sources.list line a suite.
sources() {
  local suite=$1 keyring=$2 main=${EXEC_SANDBOX_DEBIAN_MIRROR:-} security=${EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR:-}
  [ -n "$main" ] || return 0
  echo "deb [signed-by=$keyring] $main $suite main"
  echo "deb [signed-by=$keyring] $main $suite-updates main"
  [ -z "$security" ] || echo "deb [signed-by=$keyring] $security $suite-security main"
}

# extract ARCH SUITE PACKAGES ROOT [HOOK]: unpacks packages and their dependencies, without running any of their scripts.
extract() {
  local arch=$1 suite=$2 include=$3 root=$4 hook=${5:-true} keyring list
  local -a options=()
  for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
    [ ! -e "$keyring" ] || break
  done
  list=$(sources "$suite" "$keyring")
  [ -z "${EXEC_SANDBOX_DEBIAN_PROXY:-}" ] || options+=(--aptopt="Acquire::http::Proxy \"$EXEC_SANDBOX_DEBIAN_PROXY\"")
  [ -z "${EXEC_SANDBOX_DEBIAN_HTTPS_PROXY:-}" ] ||
    options+=(--aptopt="Acquire::https::Proxy \"$EXEC_SANDBOX_DEBIAN_HTTPS_PROXY\"")
  mmdebstrap --quiet --variant=extract --mode=root --format=directory --architectures="$arch" --include="$include" \
    --keyring="$keyring" --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Retries "3"' \
    --aptopt='Acquire::http::Timeout "30"' "${options[@]}" --extract-hook="$hook" \
    "$suite" "$root" ${list:+-} <<<"$list"
}

# Packages that others depend on but that are not needed here: git has them for subcommands that mail or convert histories.
# perl-base stays, so perl itself runs.
unwanted=' perl perl-modules-5.40 libperl5.40 liberror-perl libgdbm6t64 libgdbm-compat4t64 debconf media-types '

# remember DEB ROOT: records in dpkg's database that a package, unpacked in ROOT, is installed, so that apt can add others. What
# the package's scripts would have done is done here or not needed, and dependencies on unwanted packages are left out.
remember() {
  local deb=$1 root=$2 database=$2/var/lib/dpkg control label part
  control=$(mktemp -d)
  dpkg-deb -e "$deb" "$control"
  label=$(awk -F ': ' '/^[^ ]/ { of[$1] = $2 } END { print of["Package"] (of["Multi-Arch"] == "same" ? ":" of["Architecture"] : "") }' \
    "$control/control")
  for part in conffiles config md5sums postinst postrm preinst prerm templates triggers; do
    [ ! -e "$control/$part" ] || cp "$control/$part" "$database/info/$label.$part"
  done
  dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\.,,; s,/$,,; s,^$,/.,' >"$database/info/$label.list"
  awk -v unwanted="$unwanted" '
    NR == 2 { print "Status: install ok installed" }
    /^(Pre-)?Depends: / {
      field = $1
      sub(/^[^ ]* /, "")
      count = split($0, all, /, */)
      kept = ""
      for (n = 1; n <= count; n++) {
        match(all[n], /^[^ :]+/)
        if (!index(unwanted, " " substr(all[n], 1, RLENGTH) " ")) kept = kept (kept == "" ? "" : ", ") all[n]
      }
      if (kept != "") print field, kept
      next
    }
    { print }
  ' "$control/control" >>"$database/status"
  if [ -e "$control/conffiles" ]; then
    echo Conffiles:
    grep ^/ "$control/conffiles" | while read -r part; do
      printf ' %s %s\n' "$part" "$(md5sum <"$root$part" | cut -d' ' -f1)"
    done
  fi >>"$database/status"
  echo >>"$database/status"
  # The package's triggers: by a path, under which a file is installed, or by a name.
  [ ! -e "$control/triggers" ] || awk -v label="$label" -v triggers="$database/triggers" '
    $1 ~ /^interest/ {
      who = label ($1 ~ /-noawait$/ ? "/noawait" : "")
      if ($2 ~ /^\//) print $2, who >>(triggers "/File")
      else print who >>(triggers "/" $2)
    }
  ' "$control/triggers"
  rm -rf "$control"
}

# Runs while the downloaded packages are still there: lists them, removes the unwanted ones, and fetches the kernel's package
# (which is not among the others because it depends on tools that build an initramfs).
record() {
  local root=$1 out=$2 arch=$3 kernel deb name version
  export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
  cd "$out"
  # Without this file dpkg assumes a database from before there were triggers, and marks every trigger as pending.
  : >"$root/var/lib/dpkg/triggers/Unincorp"
  kernel=$(apt-cache show --no-all-versions "linux-image-cloud-$arch" | sed -n 's/^Depends: \([^ ,]*\).*/\1/p')
  apt-get -qq download "$kernel"
  for deb in "$root"/var/cache/apt/archives/*.deb "$out"/linux-image-*.deb; do
    IFS=_ read -r name version _ <<<"${deb##*/}"
    if [[ $unwanted == *" $name "* ]]; then
      dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | (cd "$root" && xargs -d '\n' rm -f)
    else
      [[ $name == linux-image-* ]] || remember "$deb" "$root"
      printf '%s\t%s\t%s\n' "$name" "${version//%3a/:}" "$(sha256sum <"$deb" | cut -d' ' -f1)"
    fi
  done | sort >packages.tsv
  mv linux-image-*.deb linux.deb
}

# Does what maintainer scripts would have done, as far as it matters in a machine that runs for minutes.
configure() {
  local root=$1 file path
  cd "$root"
  rm -rf dev/* boot var/cache/* var/lib/apt var/log/* etc/apt/{sources.list,apt.conf.d/*} usr/lib/systemd etc/systemd usr/lib/udev etc/init.d etc/rc?.d \
    etc/cron.* etc/logrotate.d usr/share/{man,info,locale,lintian,bug,bash-completion,zsh,pixmaps,applications,menu} \
    usr/share/doc-base usr/share/gcc usr/share/gdb var/lib/git tmp/*
  # Git's servers and mailers.
  rm -f usr/bin/scalar usr/bin/git-shell \
    usr/lib/git-core/{scalar,git-daemon,git-http-backend,git-http-push,git-imap-send,git-shell,git-instaweb,git-send-email}
  # Keep licences, remove the rest of the documentation.
  find usr/share/doc -type f ! -name copyright -delete
  find usr/share/doc -depth -type d -empty -delete
  find usr/lib/python3* usr/share/python3 -depth -type d \( -name __pycache__ -o -name test -o -name tests \) -exec rm -rf {} +
  mkdir -p boot proc sys dev run mnt tmp var/tmp home/user root var/log var/lib/apt/lists var/cache/apt/archives usr/local/{bin,lib,share} etc/ssl/certs
  chmod 1777 tmp var/tmp

  cp usr/share/base-passwd/passwd.master etc/passwd
  cp usr/share/base-passwd/group.master etc/group
  sed -i 's/:\*:/:x:/' etc/passwd
  sed -i 's/:\*:/:x:/' etc/group
  echo 'user:x:1000:1000::/home/user:/bin/bash' >>etc/passwd
  echo 'user:x:1000:' >>etc/group
  sed 's/^\([^:]*\):.*/\1:*:20000:0:99999:7:::/' etc/passwd >etc/shadow
  chmod 640 etc/shadow
  chown 0:42 etc/shadow
  [ -e etc/nsswitch.conf ] || printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n' >etc/nsswitch.conf
  cp usr/share/base-files/profile etc/profile
  cp usr/share/base-files/dot.bashrc root/.bashrc
  cp usr/share/base-files/dot.profile root/.profile
  cp etc/skel/.[a-z]* home/user/
  chown -R 1000:1000 home/user
  chmod 700 home/user root

  printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n' >etc/hosts
  echo sandbox >etc/hostname
  echo 'nameserver 127.0.0.1' >etc/resolv.conf
  printf '' >etc/fstab
  printf '' >etc/machine-id
  chmod 644 etc/hostname etc/resolv.conf etc/hosts etc/machine-id
  echo Etc/UTC >etc/timezone
  ln -sfn /usr/share/zoneinfo/Etc/UTC etc/localtime
  ln -sfn ../proc/self/mounts etc/mtab

  [ -e usr/bin/sh ] || ln -s dash usr/bin/sh
  ln -sfn gawk usr/bin/awk
  ln -sfn which.debianutils usr/bin/which
  ln -sfn less usr/bin/pager
  ln -sfn python3 usr/bin/python
  find usr/share/ca-certificates -name '*.crt' -printf '%P\n' | sort >etc/ca-certificates.conf
  find usr/share/ca-certificates -name '*.crt' -print0 | sort -z | xargs -0 cat >etc/ssl/certs/ca-certificates.crt
  [ -e usr/lib/ssl/cert.pem ] || [ -L usr/lib/ssl/cert.pem ] || ln -s /etc/ssl/certs/ca-certificates.crt usr/lib/ssl/cert.pem
  # Let `pip install` work without an option: in a throw-away machine there is no distribution's Python to protect.
  rm -f usr/lib/python3.*/EXTERNALLY-MANAGED

  # Keep only the remaining files in dpkg's lists.
  for file in var/lib/dpkg/info/*.list; do
    while read -r path; do
      [ ! -e ".$path" ] && [ ! -L ".$path" ] || printf '%s\n' "$path"
    done <"$file" >"$file.new"
    mv "$file.new" "$file"
  done

  find . -xdev -perm /6000 ! -type l -exec chmod ug-s {} +
  # Only root may chroot; without the cache the loader searches its built-in directories, which are correct.
  ldconfig -r . 2>/dev/null || env -u LD_PRELOAD unshare -r "$(command -v ldconfig)" -r . 2>/dev/null || true
  rm -rf var/cache/ldconfig
}

# `pip install --user`, `npm install -g` and the user's own programs all use ~/.local/bin. NODE_DIR has the binary
# `node`, its `LICENSE` and the package `npm`.
node() {
  local root=$1 from=$2 npm=$1/usr/lib/node_modules/npm
  mkdir -p "$npm" "$root/usr/share/doc/nodejs"
  cp "$from/node" "$root/usr/bin/node"
  cp "$from/LICENSE" "$root/usr/share/doc/nodejs/copyright"
  cp -R "$from/npm/." "$npm/"
  rm -rf "$npm"/{man,docs}
  # shellcheck disable=SC2016 # npm expands it
  printf '%s\n' 'prefix=${HOME}/.local' 'update-notifier=false' 'fund=false' 'audit=false' >"$npm/npmrc"
  chown -R 0:0 "$root/usr/bin/node" "$npm" "$root/usr/share/doc/nodejs"
  chmod -R u=rwX,go=rX "$npm"
  chmod 755 "$root/usr/bin/node" "$npm"/bin/*-cli.js
  ln -sfn ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/bin/npm"
  ln -sfn ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/bin/npx"
}

# bytecode ROOT TOOLS: compiles every module of ROOT with the interpreter unpacked in TOOLS (ROOT itself, or the same
# release for this host), because compiling under emulation is slow. Hash-based and unchecked: valid for any file time.
bytecode() {
  local root=$1 tools=$2 loader python part
  local -a jobs=()
  loader=$(echo "$tools"/usr/lib/*-linux-gnu/ld-linux-*.so.*)
  python=$(echo "$tools"/usr/bin/python3.[0-9][0-9])
  # One process a tree: compileall's own workers would not start under this loader. Vendored files that are not valid Python
  # are skipped.
  for part in "$root"/usr/lib/python3.[0-9]* "$root/usr/lib/python3"; do
    PYTHONHOME="$tools/usr" PYTHONHASHSEED=0 "$loader" --library-path "${loader%/*}" "$python" -S -m compileall \
      -qq -j 1 --invalidation-mode unchecked-hash -s "$root" -p / "$part" &
    jobs+=($!)
  done
  wait "${jobs[@]}" || true
  for part in "$root"/usr/lib/python3.[0-9]* "$root/usr/lib/python3"; do
    [ -n "$(find "$part" -name '*.pyc' -print -quit)" ] || { echo "no bytecode was made in ${part##*/}" >&2; exit 1; }
  done
}

case $1 in
  base)
    arch=$2 suite=$3 host=$4 packages=$5 node=$6 out=$7
    root=$out/root
    say "fetching and unpacking Debian packages"
    extract "$arch" "$suite" "$packages" "$root" "'$0' record \"\$1\" '$out' '$arch'"
    tools=$root
    if [ "$arch" != "$host" ]; then
      tools=$out/tools
      extract "$host" "$suite" python3-minimal,libpython3-stdlib "$tools"
    fi
    say "configuring the root"
    node "$root" "$node"
    (configure "$root")
    say "compiling Python modules"
    bytecode "$root" "$tools"
    say "packing the base"
    tar --sort=name --numeric-owner --mtime=@0 -C "$root" -cf "$out/base.tar" .
    rm -rf "$root" "$out/tools"
    ;;
  record)
    record "$2" "$3" "$4"
    ;;
  root)
    base=$2 interpreters=$3 epoch=$4 uuid=$5 out=$6
    say "unpacking the base"
    mkdir "$out/root"
    tar --numeric-owner -xpf "$base" -C "$out/root"
    cp -R "$interpreters" "$out/root/usr/lib/exec-sandbox"
    chown -R 0:0 "$out/root/usr/lib/exec-sandbox"
    chmod -R u=rwX,go=rX "$out/root/usr/lib/exec-sandbox"
    say "packing the root file system"
    # Clusters of 32 KiB and packed tails: 131 MB against 155 MB with the default of 4 KiB, and the same CPU time to boot.
    mkfs.erofs --quiet -zlz4hc -C32768 -Eztailpacking -x-1 -T"$epoch" -U"$uuid" "$out/root.erofs" "$out/root"
    rm -rf "$out/root"
    ;;
  scratch)
    bytes=$2 epoch=$3 uuid=$4 out=$5
    say "formatting the scratch disk"
    truncate -s "$bytes" "$out/scratch.raw"
    E2FSPROGS_FAKE_TIME=$epoch SOURCE_DATE_EPOCH=$epoch mkfs.ext4 -q -F -L scratch -U "$uuid" -m 0 \
      -O ^has_journal,^resize_inode,^metadata_csum,^uninit_bg -E "lazy_itable_init=0,nodiscard,hash_seed=$uuid,root_owner=0:0" \
      "$out/scratch.raw"
    qemu-img convert -q -O qcow2 -o compat=1.1,lazy_refcounts=off "$out/scratch.raw" "$out/scratch.qcow2"
    rm -rf "$out/scratch.raw"
    ;;
  *)
    echo "unknown command $1" >&2
    exit 2
    ;;
esac
