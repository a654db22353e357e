//! Tests that new sessions must have the same scope as the first session.

use super::*;

impl Twin {
    fn file(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("cloud.conf")).unwrap()
    }

    fn write(&self, text: &str) {
        std::fs::write(self.dir.path().join("cloud.conf"), text).unwrap();
    }

    /// Makes the next call fail as if the token had been revoked.
    fn refuse_token(&self) {
        self.state().refusals = vec![("/volume", "401", "")];
    }
}

#[tokio::test]
async fn without_a_region_a_cloud_of_several_is_refused_by_their_names() {
    let twin = Twin::with("region=\n").await;
    let refused = twin.backend.create(order("pvc-1")).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    for part in ["one, two", "set region in cloud.conf"] {
        assert!(refused.message.contains(part), "{refused}");
    }
}

#[tokio::test]
async fn credentials_of_another_project_are_not_used_and_those_of_the_same_are() {
    let twin = Twin::start().await;
    twin.state().project = "project-1";
    let id = twin.created("pvc-1").await;
    let text = twin.file();

    twin.state().project = "project-2";
    twin.refuse_token();
    for _ in 0..2 {
        let refused = twin.get(&id).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition);
        for part in ["of project project-2", "of project project-1", "restart"] {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
        twin.refuse_token();
    }

    // Test other credentials; a token may omit its project.
    for project in ["project-1", ""] {
        twin.state().project = project;
        twin.state().password = "other-canary";
        twin.write(&text.replace(PASSWORD, "other-canary"));
        twin.refuse_token();
        twin.get(&id).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn another_region_in_the_file_is_not_used_until_a_restart() {
    let twin = Twin::start().await;
    let id = twin.created("pvc-1").await;
    twin.write(&twin.file().replace("region=one", "region=two"));
    twin.refuse_token();
    let refused = twin.get(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("of region two"), "{refused}");
}
