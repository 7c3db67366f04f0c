//! Many tabs of one browser: one stream for all of them, and one login.

use serde_json::json;

use super::driver::{Browser, at_each_size};
use crate::support::Broker;

at_each_size! {
    eight_tabs_are_live_and_share_one_stream,
    a_browser_logs_in_once_for_all_its_tabs,
}

/// Two more than a browser opens connections to a host.
const TABS: usize = 8;

async fn eight_tabs_are_live_and_share_one_stream(browser: Browser) {
    // A second stream would be refused.
    let broker = Broker::start_with(|config| config.limits.followers_max = 1).await;
    broker.submit("first").await;
    let mut tabs = vec![browser.tab().await];
    while tabs.len() < TABS {
        tabs.push(browser.new_tab().await);
    }
    for tab in &tabs {
        browser.switch(tab).await;
        browser.open(&broker.url, "#/jobs").await;
        browser.shows("#connection", "live").await;
        // Calls beside the stream get a connection too.
        browser.shows("#jobs tbody", "first").await;
    }
    // The other tabs are still live after the last one opened.
    broker.submit("second").await;
    for tab in &tabs {
        browser.switch(tab).await;
        browser.shows("#connection", "live").await;
        browser.shows("#glance", "2 waiting").await;
        browser.shows("#jobs tbody", "second").await;
    }
    // The first tab may close.
    browser.switch(&tabs[0]).await;
    browser.close_tab().await;
    browser.switch(&tabs[1]).await;
    broker.submit("third").await;
    browser.shows("#glance", "3 waiting").await;
    // A tab that leaves and comes back takes no connection away from others.
    for _ in 0..TABS {
        browser.leave().await;
        browser.open(&broker.url, "#/").await;
        browser.shows("#connection", "live").await;
    }
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

async fn a_browser_logs_in_once_for_all_its_tabs(browser: Browser) {
    let tokens = "read rrrrrrrrrrrrrrrrrrrr\nadmin aaaaaaaaaaaaaaaaaaaa\n";
    let tokens = tenure_server::Tokens::parse(tokens).unwrap();
    let broker = Broker::start_with(|config| config.tokens = tokens).await;
    browser.open(&broker.url, "#/").await;
    let first = browser.tab().await;
    browser.shows("#banner", "Access refused").await;
    let second = browser.new_tab().await;
    browser.switch(&second).await;
    browser.open(&broker.url, "#/queues").await;
    browser.shows("dialog", "Access token").await;
    browser.fill("#field-token", "wrongwrongwrongwrong").await;
    browser.press("Log in").await;
    browser
        .shows("dialog", "the token is missing or unknown")
        .await;
    browser.fill("#field-token", "aaaaaaaaaaaaaaaaaaaa").await;
    browser.press("Log in").await;
    browser.shows("#connection", "live").await;
    // The tab that asked for a login notices by itself.
    browser.switch(&first).await;
    browser.shows("#connection", "live").await;
    browser
        .until("return !document.querySelector('dialog')")
        .await;
    // A new tab does not ask for a token.
    let third = browser.new_tab().await;
    browser.switch(&third).await;
    browser.open(&broker.url, "#/jobs").await;
    browser.shows("#connection", "live").await;
    browser.press("Submit a job…").await;
    browser.fill("#field-type", "print").await;
    browser.press("Submit").await;
    browser.shows("#payload", "{}").await;
    // Scripts have access to neither the token nor the cookie.
    let held = "return [document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join('')";
    let held = browser.run(held).await.to_string();
    assert!(!held.contains("aaaa") && !held.contains("login"), "{held}");
    // Without the page's header the cookie has no effect.
    let alone = "const done = arguments[0]; fetch('v1/jobs').then((answer) => done(answer.status))";
    assert_eq!(browser.run_async(alone).await, json!(401));
    browser.press_named("Set the access token").await;
    browser.press("Log out").await;
    browser.shows("#banner", "Access refused").await;
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}
