# `make help` lists the targets.

.DEFAULT_GOAL := help
# What the site is made with, in a folder of its own.
MDBOOK_VERSION = 0.5.4
MDBOOK = $${XDG_CACHE_HOME:-$$HOME/.cache}/tenure-test/mdbook-$(MDBOOK_VERSION)

.PHONY: docs dist dist-test help test check fix sim model mutants fuzz overlap chaos chaos-failover chaos-clocks screenshots soak outbox-kills outbox-claims cost bench-outbox bench-store bench-election bench-queue bench-server bench-instructions bench-memory bench-peers

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

test: ## everything, on real servers that are started for it and stopped afterwards
	scripts/with-servers --require installed -- scripts/test

check: ## what needs no server: format, lints, tests (changes nothing)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked

fix: ## format, and apply what the lints suggest
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

docs: ## the documentation as a site, in target/docs
	[ -x "$(MDBOOK)/bin/mdbook" ] || cargo install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search --root "$(MDBOOK)"
	cargo build --locked -p tenure-cli
	PATH="$(MDBOOK)/bin:$$PATH" scripts/make-docs "$${CARGO_TARGET_DIR:-target}/debug/tenure"

DIST = $${CARGO_TARGET_DIR:-target}/dist-packages
dist: ## the packages of a release, in target/dist-packages: archives, Debian, Python, npm, container image, checksums
	rm -rf "$(DIST)"
	scripts/dist --out "$(DIST)"

dist-test: ## the packages of `make dist`, each installed and used in a system that has nothing else; needs root
	scripts/test-dist --packages "$(DIST)"

SEEDS ?= 1000
sim: ## simulate nodes on a faulty store, the whole stack, and one-shot callers; SEEDS=N for more or fewer
	cargo run --quiet --release --locked -p tenure-sim -- --seeds $(SEEDS)
	cargo run --quiet --release --locked -p tenure-sim --bin stack -- --seeds $(SEEDS)
	cargo run --quiet --release --locked -p tenure-sim --bin callers -- --seeds $(SEEDS)

model: ## look at every order of events within bounds, and break each rule to see that it is noticed
	cargo run --quiet --release --locked -p tenure-sim --bin model
	scripts/mutants --model

mutants: ## change tenure-core in every small way that cargo-mutants knows: its tests and the simulations notice; hours, MINUTES=N for a part
	scripts/cargo-mutants --keep $(if $(MINUTES),--minutes $(MINUTES))

OVERLAP_SECONDS ?= 300
overlap: ## kill, stop and cut off real nodes and programs for five minutes: no shard may run twice
	TENURE_OVERLAP_SECONDS=$(OVERLAP_SECONDS) scripts/with-servers --only postgres -- \
		cargo test -p tenure --test it --locked overlap -- --nocapture
	TENURE_CHURN_SECONDS=$(OVERLAP_SECONDS) scripts/with-servers --only postgres -- \
		cargo test -p tenure-cli --test cli --locked no_two_programs -- --nocapture

chaos: MINUTES ?= 30
chaos: ## break real brokers on real servers and check what clients saw; MINUTES=N
	cargo build --locked -p tenure-cli -p tenure-chaos
	scripts/with-servers --only postgres,mariadb,ceph -- $(CHAOS) --minutes $(MINUTES)

JOBS ?= 20000
chaos-failover: ## kill the leader five times while JOBS=N jobs run, on file, PostgreSQL and S3
	cargo build --locked -p tenure-cli -p tenure-chaos
	scripts/with-servers --only postgres,ceph -- $(CHAOS) --engines file,postgres,s3 --failover $(JOBS)

STEPS ?= 100
chaos-clocks: ## set the store's clock STEPS=N times by minutes, both ways, on file, SQLite, PostgreSQL and S3
	cargo build --locked -p tenure-cli -p tenure-chaos
	scripts/with-servers --only postgres,ceph,faketime -- $(CHAOS) --clocks $(STEPS)

fuzz: ## damage everything that is read, and see that nothing panics or grows; MINUTES=N in sum
	TENURE_FUZZ_MILLISECONDS=$$(( $(MINUTES) * 60000 / $(FUZZ_TARGETS) )) \
		cargo test --locked -p tenure-api -p tenure-core -p tenure-store -p tenure -p tenure-server -p tenure-client -p tenure-cli \
		--lib --bins --test it fuzz -- --nocapture --test-threads=1

# About how many there are, for MINUTES to be about right.
FUZZ_TARGETS = 32

CHAOS = $${CARGO_TARGET_DIR:-target}/debug/tenure-chaos

SCREENSHOT_SECONDS ?= 600
screenshots: ## the pictures of the dashboard in docs/images, of a cluster that runs for ten minutes
	TENURE_SCREENSHOT_SECONDS=$(SCREENSHOT_SECONDS) scripts/with-servers --only chromium -- \
		cargo test -p tenure-server --test it --locked the_pictures_of_the_documentation
	cp "$${CARGO_TARGET_DIR:-target}"/screenshots/docs/*.webp docs/images/

cost: MINUTES ?= 10
cost: ## count what two idle brokers ask their store at default settings, and compare it with docs/cost.md; MINUTES=N
	TENURE_COST_SECONDS=$$(( $(MINUTES) * 60 )) scripts/with-servers --only postgres,ceph -- \
		cargo test -p tenure-server --test it --locked cost::idle_brokers_ask_what_the_page_says_on -- --nocapture

soak: MINUTES ?= 60
soak: ## what an open page costs the broker, and the browser over an hour; MINUTES=N
	TENURE_SOAK_MINUTES=$(MINUTES) scripts/with-servers --only chromium -- \
		cargo test --release -p tenure-server --test it --locked soak -- --nocapture --test-threads 1

outbox-kills: ## kill relays 50 times during 100,000 rows, on PostgreSQL, MariaDB and (10 times) SQLite
	TENURE_OUTBOX_ROWS=100000 TENURE_OUTBOX_KILLS=50 scripts/with-servers --only postgres,mariadb -- \
		cargo test -p tenure-cli --test cli --locked rows_in_ -- --nocapture --test-threads 1

outbox-claims: ## pause workers in their transactions 1,000 times while their jobs run elsewhere, on three engines: one effect each
	TENURE_CLAIM_ROUNDS=1000 scripts/with-servers --only postgres,mariadb -- \
		cargo test -p tenure --test it --locked outbox::claims -- --nocapture --test-threads 1

bench-outbox: ## rows per second through the relay, beside a transaction that is held open, and what a submit adds
	scripts/with-servers --only postgres -- cargo bench -p tenure --bench outbox --locked

bench-store: ## what each engine costs, next to the floor below it, in one run
	scripts/with-servers -- cargo bench -p tenure-store --bench engines --locked

bench-election: ## hand-overs within and between processes, and up to 10,000 elections in one; HOLD=600 holds them longer
	cargo build --profile dist -p tenure-cli --locked
	scripts/with-servers -- cargo bench -p tenure --bench handover --bench many --locked
	scripts/with-servers -- scripts/bench-handover target/dist/tenure

ONLY ?=
bench-queue: ## speed, depth, recovery and latency of the queue; ONLY=depth for a section
	cargo bench -p tenure --bench queue --locked -- $(ONLY)

bench-server: ## pick-up latency, and durable submits beside a bare server; ONLY=reads for reads of a large queue
	cargo bench -p tenure-server --bench server --locked -- $(ONLY)

bench-instructions: ## instructions of the hot paths beside the baseline, whatever else runs; a path over 2 % worse fails
	scripts/bench-instructions

PEERS ?=
bench-peers: MINUTES ?= 14
bench-peers: ## other queues and elections beside ours, in 15 minutes; ONLY=submit,workoff PEERS=bullmq,nats DEPTHS= ELECTIONS= MINUTES= WRITE=1
	bench/run --only "$(ONLY)" --peers "$(PEERS)" --minutes $(MINUTES) $(if $(DEPTHS),--depths $(DEPTHS)) $(if $(ELECTIONS),--elections $(ELECTIONS)) $(if $(WRITE),--write)

bench-memory: ## how much memory a broker takes for each job that waits, at 230,000 and 1,000,000 jobs
	cargo build --profile dist -p tenure-cli --locked
	scripts/bench-memory target/dist/tenure
