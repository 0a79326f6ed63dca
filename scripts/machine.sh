# Functions that find or install programs on this machine. To be sourced.

say() { printf '== %s\n' "$*"; }

stop() {
  printf '%s\n' "$*" >&2
  exit 1
}

root_with_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# Fails without a message where packages can't be installed.
apt_install() {
  root_with_apt || return 1
  say "apt-get install $*"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

java_major() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'; }

# The home of a Java that Spark 4.1 runs on. The newest on the path may be too new for it.
find_java() {
  local java
  for java in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" \
    /usr/lib/jvm/*{17,21}*/bin/java /Library/Java/JavaVirtualMachines/*{17,21}*/Contents/Home/bin/java; do
    [[ -x $java ]] || continue
    case $(java_major "$java") in 17 | 21)
      java_home_of "$java"
      return 0
      ;;
    esac
  done
  return 1
}

# Asks Java, because `java` may be a link or a launcher that is far from its home.
java_home_of() { "$1" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'; }

has_postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }
