/** Packages in wide use, selected by hand: for data, web, files and tests. */
const words = (text: string): ReadonlyArray<string> => text.trim().split(/\s+/)

export const popular = {
  python: words(`
    aiofiles aiohttp altair anyio asyncpg attrs babel beautifulsoup4 black bokeh boto3 cachetools catboost certifi cffi chardet
    charset-normalizer click cloudpickle colorama coverage cryptography cssselect cvxpy cython dask dateparser decorator
    deepdiff diskcache django dnspython docutils duckdb emoji et-xmlfile faker fastapi fastparquet filelock flake8 flask fonttools
    fsspec geopandas gensim google-auth graphviz greenlet grpcio gunicorn h11 h2 h5py holidays html5lib httpcore httptools httpx
    humanize hypothesis idna imageio importlib-metadata iniconfig ipython isort itsdangerous jedi jinja2 jmespath joblib
    jsonpatch jsonschema kiwisolver lightgbm lifelines llvmlite lxml mako markdown markdown-it-py markupsafe marshmallow matplotlib
    mistune more-itertools mpmath msgpack multidict mypy mypy-extensions networkx nltk numba numexpr numpy oauthlib odfpy openai
    opencv-python-headless openpyxl orjson packaging pandas paramiko parso pathspec patsy pdfminer-six pdfplumber peewee pendulum
    pillow pip platformdirs plotly pluggy polars prettytable prompt-toolkit protobuf psutil psycopg2-binary pyarrow pyasn1
    pycparser pycryptodome pydantic pydantic-core pygments pyjwt pymongo pymupdf pymysql pynacl pyopenssl pyparsing pypdf pytest
    pytest-asyncio pytest-cov python-dateutil python-docx python-dotenv python-multipart python-pptx pytz pywavelets pyyaml pyzmq
    qrcode rapidfuzz redis regex reportlab requests requests-oauthlib rich rpds-py ruff s3transfer scikit-image scikit-learn
    scipy seaborn selectolax setuptools shapely simplejson six sniffio sortedcontainers soupsieve spacy sqlalchemy sqlparse
    starlette statsmodels sympy tabulate tenacity termcolor threadpoolctl tiktoken tokenizers toml tomli tomlkit toolz tornado
    tqdm traitlets typer typing-extensions typing-inspection tzdata tzlocal ujson unidecode urllib3 uvicorn virtualenv watchdog
    wcwidth websocket-client websockets werkzeug wheel wordcloud wrapt xarray xgboost xlrd xlsxwriter xmltodict yarl zipp zstandard
  `),
  javascript: words(`
    @babel/core @babel/parser @babel/runtime @babel/types @faker-js/faker @grpc/grpc-js @types/lodash @types/node @types/react acorn
    ajv ajv-formats ansi-styles archiver async axios bcryptjs better-sqlite3 big.js bignumber.js bluebird body-parser busboy cac chai
    chalk cheerio chokidar classnames cli-table3 colorette commander compression concurrently cookie cors cross-env cross-spawn
    csv csv-parse csv-stringify d3 d3-array d3-scale date-fns dayjs debug decimal.js deepmerge diff dotenv effect ejs
    esbuild eslint eventemitter3 execa express fast-deep-equal fast-glob fast-xml-parser fastify fflate file-type form-data
    fp-ts fs-extra fuse.js glob globby got graphql gray-matter handlebars helmet highlight.js hono html-to-text http-proxy
    iconv-lite immer immutable inquirer ioredis is-plain-object jest jose js-yaml jsdom json5 jsonc-parser jsonwebtoken jszip katex
    knex koa ky lodash lodash-es lru-cache luxon magic-string marked markdown-it mathjs micromatch mime mime-types minimatch
    minimist mocha moment moment-timezone mongodb ms mustache mysql2 nanoid node-fetch object-assign ora p-limit p-map p-queue
    papaparse parse5 pdf-lib pdfkit pg picocolors pino postcss prettier prisma prop-types qs ramda react react-dom redis
    redux rimraf rollup rxjs sax semver sharp shelljs showdown sinon slugify socket.io source-map sqlite3 strip-ansi
    superagent supertest svelte swr tailwindcss tar tar-stream three tinycolor2 toml tough-cookie ts-node tslib tsx turndown typescript
    underscore undici unified uuid valibot validator vite vitest vue winston ws xlsx xml2js yaml yargs yup zod zustand
  `),
  debian: words(`
    7zip antiword aspell aspell-en attr autoconf automake bc binutils bison bsdextrautils build-essential busybox cargo
    ccache clang cloc cmake colordiff cpio csvkit datamash dc default-jdk-headless default-jre-headless diffstat dos2unix
    entr espeak-ng fd-find ffmpeg figlet flex fontconfig fonts-dejavu fonts-dejavu-core fonts-liberation fonts-noto-cjk
    fonts-noto-color-emoji fonts-noto-core fzf g++ gcc gdal-bin gdb geoip-bin gettext gfortran ghostscript git-lfs
    gnuplot-nox golang-go graphicsmagick graphviz groff gv html2text htop hunspell hunspell-en-us imagemagick indent jo
    latexmk libcairo2-dev libffi-dev libimage-exiftool-perl libjpeg-dev libpng-dev libpq-dev libreoffice-calc-nogui
    libreoffice-impress-nogui libreoffice-writer-nogui libsqlite3-dev libssl-dev libxml2-dev libxml2-utils libxslt1-dev
    lilypond lsof ltrace lua5.4 lynx lz4 m4 maxima mecab mediainfo miller moreutils nano nasm ncal ncdu ninja-build
    ocaml-nox octave openjdk-21-jdk-headless openjdk-21-jre-headless optipng pandoc parallel pari-gp pdfgrep pdftk-java perl
    perl-doc php-cli pkgconf plantuml plotutils pngquant poppler-utils postgresql-client potrace psmisc pv python3-dev
    python3-matplotlib python3-numpy python3-pandas python3-pil python3-scipy python3-tk qpdf qrencode r-base-core rename
    ripgrep rlwrap rsync ruby rustc sox strace swi-prolog-nox tesseract-ocr tesseract-ocr-eng texlive-fonts-recommended
    texlive-latex-base texlive-latex-extra texlive-latex-recommended texlive-xetex tidy time tmux units universal-ctags
    uuid-runtime valgrind vim vim-tiny wamerican webp wget xmlstarlet xsltproc xxd yamllint yq z3 zsh zstd
  `)
}
